"""The real server on the model that ships with it, and how likely that finds tokens that it reads one by one.

`python -m tests.clients.scorer` prints its address and serves until its input ends.
With the word `oracle` it reads lists of tokens, and prints of each token but the first of a list its logprob
and whether none is likelier.
"""

import json
import math
import sys
from array import array

import numpy as np

from cobali_ray.backend import threads
from cobali_ray.backend.batch import TickBatch
from cobali_ray.core.plan.plan import Span
from tests.page.stack import Site

N_CTX = 512
SETTINGS = {
    "model": "builtin:tiny",
    "model_id": "tiny",
    "n_ctx": N_CTX,
    "n_slots": 4,
    "flash_attn": "off",
    "threads_wait": "passive",
    "host_cache_mib": 0,
}


def score(backend, tokens):
    """Return (logprob, is greedy) of each token but the first, each computed in a pass of its own."""
    batch, found = TickBatch(backend.n_batch), []
    for at, token in enumerate(tokens[1:]):
        batch.fill((Span(0, at, 1, sample=True),), [array("i", tokens)])
        backend.forward(batch)
        row = backend._read_logits(1)[0].astype(np.float64)
        logprob = row[token] - row.max() - math.log(np.exp(row - row.max()).sum())
        found.append((logprob, bool(row.argmax() == token)))
    backend.truncate(0, 0)
    return found


def oracle():
    """Answer what is asked on standard input."""
    threads.apply_wait("passive", n_threads=2)
    from cobali_ray.backend.config import LlamaConfig
    from cobali_ray.backend.llama import LlamaBackend
    from cobali_ray.models.registry import resolve

    config = LlamaConfig(
        path=resolve("builtin:tiny"), n_slots=1, n_ctx=N_CTX, n_batch=64, n_threads=2, flash_attn="off"
    )
    backend = LlamaBackend(config)
    json.dump([score(backend, tokens) for tokens in json.load(sys.stdin)], sys.stdout)


def main():
    with Site(strict=True, **SETTINGS) as site:
        sys.stdout.write(f"{site.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    oracle() if sys.argv[1:] else main()
