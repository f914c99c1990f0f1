"""An engine whose model says, token by token, what a test wants it to say, as far as it is let."""

import numpy as np

from cobali_ray.backend.sampling import sample_rows
from cobali_ray.backend.scripted import END_TOKEN, N_BYTES, N_VOCAB, ByteVocab, ScriptedBackend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import GREEDY, Request
from cobali_ray.engine.engine import Engine
from cobali_ray.testing import EventRecorder, FakeClock

CALL, CALL_END, THINK = 257, 258, 259
NAMES = {END_TOKEN: "<end>", CALL: "<call>", CALL_END: "</call>", THINK: "<think>"}


def tokens_of(text):
    """The tokens of a text in which control tokens stand by their names."""
    tokens = []
    while text:
        control = next((token for token, name in NAMES.items() if text.startswith(name)), None)
        tokens += [ord(text[0])] if control is None else [control]
        text = text[1:] if control is None else text[len(NAMES[control]) :]
    return tokens


class Words(ByteVocab):
    """Bytes, and control tokens that have names."""

    def detokenize(self, tokens, *, special=True, is_cancelled=None):
        return "".join(chr(token) if token < N_BYTES else special * NAMES[token] for token in tokens)


class Talker(ScriptedBackend):
    """Each row's likeliest token by far is the next one of its own script; then comes an end."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.words = Words()
        self.scripts = {}

    def sample(self, rows):
        self._computed = None
        logits = np.full((len(rows), N_VOCAB), -20.0, np.float32)
        logits[:, END_TOKEN] = 0.0
        for at, row in enumerate(rows):
            script = self.scripts[id(row)]
            if row.n_sampled < len(script):
                logits[at, script[row.n_sampled]] = 20.0
        return sample_rows(logits, rows)


class OnEngine:
    """An engine on some model; `more` are limits, and `how` what else an engine takes."""

    def __init__(self, backend, *, clock=None, how=None, **more):
        self.backend = backend
        base = {
            "n_slots": backend.n_slots, "n_ctx_slot": backend.n_ctx_slot, "n_cells": backend.n_cells,
            "token_budget": 64, "prefill_chunk": 32, "min_prefix": 0,
        }  # fmt: skip
        self.limits = EngineLimits(**base | more)
        self.clock, self.events = clock or FakeClock(step_s=0.001), EventRecorder()
        how = {"entropy": lambda: 1, "check_every": 1} | (how or {})
        self.engine = Engine(backend, self.limits, self.clock, self.events, **how)

    def tick(self):
        return self.engine.tick()

    def run(self):
        """Tick until nobody is left; return what each tick tells."""
        ticks = []
        while self.engine.has_work:
            ticks.append(self.tick())
        return [tick for tick in ticks if tick is not None]

    def cached(self, request_id="0"):
        """Return how much of a prompt was there already."""
        (end,) = self.events.ends(request_id)
        return end.stats.n_cached

    def answer(self, request_id):
        (end,) = self.events.ends(request_id)
        return self.events.text(request_id), end

    def ask(self, script, **kwargs):
        self.submit("r", script, **kwargs)
        self.run()
        return self.answer("r")


class Setup(OnEngine):
    """An engine on a model that says what it is told to."""

    def __init__(self, *, n_slots=4, n_ctx=256, n_cells=None, overlaps=False):
        super().__init__(
            Talker(n_slots=n_slots, n_ctx_slot=n_ctx, n_cells=n_cells, n_batch=64, overlaps=overlaps)
        )

    def submit(self, request_id, script, *, prompt=b"hi", max_tokens=200, sampling=GREEDY, **kwargs):
        asked = Request(
            request_id=request_id, prompt=tuple(prompt), max_tokens=max_tokens, sampling=sampling, **kwargs
        )
        sequence = self.engine.submit(asked)
        tokens = tokens_of(script) if isinstance(script, str) else script
        self.backend.scripts[id(self.engine.samplers.of(request_id))] = tokens
        return sequence


def allowed(matcher):
    bits = np.unpackbits(matcher.mask(), count=N_VOCAB, bitorder="little")
    return bits.nonzero()[0].tolist()
