"""BERT in numpy, to compare with: it reads the same file, one text at a time."""

import numpy as np
from gguf import GGUFReader


class NumpyBert:
    """The original architecture: norms behind each half of a layer, learned positions, GELU by tanh."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.weights = {tensor.name: np.array(tensor.data, np.float64) for tensor in reader.tensors}

        def read(key):
            return int(reader.get_field(f"bert.{key}").contents())

        self.n_layers, self.n_heads = read("block_count"), read("attention.head_count")

    def hidden(self, tokens):
        """Return the vector of each token."""
        w, n = self.weights, len(tokens)
        x = w["token_embd.weight"][list(tokens)] + w["token_types.weight"][0] + w["position_embd.weight"][:n]
        x = self.norm(x, "token_embd_norm")
        for layer in range(self.n_layers):
            at = f"blk.{layer}"
            x = self.norm(x + self.attention(x, at), f"{at}.attn_output_norm")
            up = self.linear(x, f"{at}.ffn_up")
            up = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
            x = self.norm(x + self.linear(up, f"{at}.ffn_down"), f"{at}.layer_output_norm")
        return x

    def attention(self, x, at):
        """Let every token look at every other."""
        q, k, v = (
            self.linear(x, f"{at}.attn_{name}").reshape(len(x), self.n_heads, -1).swapaxes(0, 1)
            for name in "qkv"
        )
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ v
        return self.linear(mixed.swapaxes(0, 1).reshape(len(x), -1), f"{at}.attn_output")

    def linear(self, x, name):
        """Apply one matrix."""
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x, name):
        """Bring each row to mean 0 and deviation 1."""
        x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def mean(self, tokens):
        """Return the vector of a text."""
        return self.hidden(tokens).mean(axis=0)

    def score(self, tokens):
        """Return what the head says of a pair."""
        pooled = np.tanh(self.linear(self.hidden(tokens)[0], "cls"))
        return float(self.linear(pooled, "cls.output")[0])
