"""A Qwen2 decoder in PyTorch, tensor for tensor what llama.cpp computes for the architecture `qwen2`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everybody's name for it

_SHORT = 192
"""Rows up to this length are attended to with all scores in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the model looks like; input and output embeddings are one tensor."""

    n_layers: int = 5
    width: int = 256
    n_heads: int = 4
    n_kv_heads: int = 2
    ffn_width: int = 640
    n_vocab: int = 4096
    n_ctx: int = 4096
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.width % self.n_heads or self.n_heads % self.n_kv_heads:
            raise ValueError(f"{self.n_heads} heads, {self.n_kv_heads} for KV, do not share {self.width}")
        if self.width % 32 or self.ffn_width % 32:
            raise ValueError("Q8_0 stores rows in blocks of 32")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.n_heads

    @property
    def kv_width(self) -> int:
        """Width of one token's keys, or values, of all KV heads."""
        return self.head_dim * self.n_kv_heads

    def as_dict(self) -> dict[str, Any]:
        """Return what rebuilds it."""
        return asdict(self)


class Norm(nn.Module):
    """RMS norm with a gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Grouped-query attention with biases on queries, keys and values, and NeoX rotation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q = nn.Linear(shape.width, shape.width)
        self.k = nn.Linear(shape.width, shape.kv_width)
        self.v = nn.Linear(shape.width, shape.kv_width)
        self.o = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n_rows, n_tokens, _ = x.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(n_rows, n_tokens, -1, self.shape.head_dim).transpose(1, 2)

        q, k = rotate(heads(self.q(x)), cos, sin), rotate(heads(self.k(x)), cos, sin)
        attend = attend_short if n_tokens <= _SHORT else attend_long
        mixed = attend(q, k, heads(self.v(x)))
        return self.o(mixed.transpose(1, 2).reshape(n_rows, n_tokens, -1))


def attend_short(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally with all scores in memory: faster on a CPU for rows of some dozen tokens."""
    n_rows, n_heads, n_tokens, head_dim = q.shape
    n_kv = k.shape[1]
    grouped = q.reshape(n_rows, n_kv, n_heads // n_kv * n_tokens, head_dim)
    scores = (grouped @ k.transpose(-1, -2)).float() * head_dim**-0.5
    future = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.view(n_rows, n_heads, n_tokens, n_tokens).masked_fill(future, -math.inf)
    shares = scores.softmax(-1).to(q.dtype).view(n_rows, n_kv, -1, n_tokens)
    return (shares @ v).view(n_rows, n_heads, n_tokens, head_dim)


def attend_long(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally without ever holding all scores."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + half) by its position: the order llama.cpp calls NeoX."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Layer(nn.Module):
    """Attention, then a gated feed-forward net, each behind a norm and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = (Norm(shape.width, shape.norm_eps) for _ in range(2))
        self.attn = Attention(shape)
        self.gate = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.up = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.down = nn.Linear(shape.ffn_width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), cos, sin)
        y = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """The whole model. `forward` gives hidden states; `logits` turns the wanted ones into scores."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.n_vocab, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.norm = Norm(shape.width, shape.norm_eps)
        half = shape.head_dim // 2
        angles = shape.rope_base ** -(torch.arange(half, dtype=torch.float64) / half)
        turns = torch.outer(torch.arange(shape.n_ctx, dtype=torch.float64), angles)
        self.register_buffer("cos", turns.cos().float(), persistent=False)
        self.register_buffer("sin", turns.sin().float(), persistent=False)
        self._start()

    def _start(self) -> None:
        """Draw small weights; what writes into the stream is smaller the more layers write."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                last = name.endswith(("o.weight", "down.weight"))
                scale = 1 / math.sqrt(2 * self.shape.n_layers) if last else 1.0
                nn.init.normal_(
                    parameter, std=0.02 if "embedding" in name else scale / math.sqrt(parameter.shape[1])
                )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        n_tokens = tokens.shape[1]
        cos, sin = self.cos[:n_tokens].to(x.dtype), self.sin[:n_tokens].to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every token of the vocabulary for each hidden state."""
        return F.linear(hidden, self.embedding.weight.to(hidden.dtype))
