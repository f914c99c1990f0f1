"""What `cobali bench peers` runs: a model, the servers' settings and the loads, under one name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cobali_workloads.load.shape import (
    Conversations,
    Fixed,
    Intruder,
    Length,
    LoadShape,
    Lognormal,
    Prefix,
    Slo,
    Uniform,
)

SPEAKING = "builtin:tiny"
"""What a client sends back of its answers has the same tokens; random ones are read otherwise."""
TINY, TINY_152K = "builtin:synthetic-tiny", "builtin:synthetic-tiny-152k"
HYBRID = "builtin:synthetic-hybrid-0.5b"
SIZES = {"0.5b": "builtin:synthetic-qwen2.5-0.5b:Q8_0", "1.5b": "builtin:synthetic-qwen2.5-1.5b:Q4_K_M"}
CAPACITY_SHARES = (0.4, 0.6, 0.8)
_PATIENT = Slo(ttft_s=5.0, tpot_s=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One comparison. Every level of a closed loop, and every share of the capacity, is a load of its own."""

    name: str
    title: str
    model: str
    n_slots: int
    n_ctx: int
    shape: LoadShape
    capacity_shares: tuple[float, ...] = ()
    """Open loop: rates as shares of the requests per second that llama-server finishes; else the shape's."""


def _closed(
    name: str, description: str, *, clients: tuple[int, ...], waves: int, prompt: Length, n_output: int,
    intruder: Intruder | None = None, turns: Conversations | None = None, slo: Slo = _PATIENT,
) -> LoadShape:  # fmt: skip
    return LoadShape(
        name=f"peers-{name}", description=description, seed=21, kind="closed",
        prompt=prompt, output=Fixed(tokens=n_output), ignore_eos=True, warmup_requests=0, slo=slo,
        concurrency=clients, requests_per_client=waves, intruder=intruder, turns=turns,
    )  # fmt: skip


def _intruder(n_tokens: int) -> tuple[str, str, int, LoadShape]:
    name = f"intruder-{n_tokens}"
    shape = _closed(
        name, f"4 and 15 steady streams of 32 + 256 tokens; after 10 s comes a prompt of {n_tokens:,}.",
        clients=(4, 15), waves=1, prompt=Fixed(tokens=32), n_output=256,
        intruder=Intruder(every_s=10.0, prompt_tokens=n_tokens, output_tokens=16, at_most=1),
    )  # fmt: skip
    return name, f"4 and 15 streams beside a prompt of {n_tokens:,} tokens", n_tokens + 256, shape


_STEADY = LoadShape(
    name="peers-steady",
    description="Requests at random times (Poisson) at 0.4, 0.6 and 0.8 of the rate that llama-server can "
    "finish; prompts log-normal around 128 tokens, answers of 32 to 96.",
    seed=26, kind="open", rate_rps=1.0, n_requests=24, warmup_requests=0,
    prompt=Lognormal(median=128, sigma=0.8, low=8, high=896), output=Uniform(low=32, high=96),
    ignore_eos=True, slo=_PATIENT,
)  # fmt: skip
_SHARED = LoadShape(
    name="peers-shared",
    description="32 prompts at once that begin with the same 1,024 tokens, new ones in every run, and have "
    "32 of their own.",
    seed=24, kind="open", rate_rps=1000.0, n_requests=32, warmup_requests=0,
    prefix=Prefix(tokens=1024, n_groups=1, fresh=True), prompt=Fixed(tokens=32), output=Fixed(tokens=32),
    ignore_eos=True, slo=_PATIENT,
)  # fmt: skip
_BURST = _closed(
    "burst", "16 clients at once, one request each of 128 + 64 tokens, streamed.",
    clients=(16,), waves=1, prompt=Fixed(tokens=128), n_output=64,
)  # fmt: skip
_CHATS = _closed(
    "chats", "24 clients, each a conversation: four turns of 64 new tokens, answers of 32.",
    clients=(24,), waves=4, prompt=Fixed(tokens=64), n_output=32, turns=Conversations(n_turns=4),
)  # fmt: skip
_ONE = _closed(
    "one", "One client, four requests of 128 + 64 tokens, streamed.",
    clients=(1,), waves=4, prompt=Fixed(tokens=128), n_output=64,
)  # fmt: skip
LOADS: tuple[tuple[str, str, int, LoadShape], ...] = (
    ("steady", "Requests at random times", 1024, _STEADY),
    ("burst", "16 requests at once", 1024, _BURST),
    _intruder(1024),
    _intruder(4096),
    ("shared", "32 prompts at once that share 1,024 tokens", 1152, _SHARED),
    ("chats", "24 conversations of four turns on 16 slots", 1024, _CHATS),
    ("one", "One client", 1024, _ONE),
)
"""Name, title, tokens per slot and load of what runs on every size."""

_REAL = [
    Preset(
        name=f"{name}-{size}", title=f"{title}, the {size[:-1]}B shape", model=model, n_slots=16, n_ctx=n_ctx,
        shape=shape, capacity_shares=CAPACITY_SHARES if shape is _STEADY else (),
    )
    for size, model in SIZES.items()
    for name, title, n_ctx, shape in LOADS
]  # fmt: skip
_MANY_CHATS = replace(
    _CHATS, description="64 clients, each a conversation: six turns of 64 new tokens, answers of 32.",
    concurrency=(64,), requests_per_client=6, turns=Conversations(n_turns=6),
)  # fmt: skip
_OVERHEAD = [
    Preset(
        name="overhead-burst", title="16 streams, 152k vocabulary", model=TINY_152K, n_slots=16, n_ctx=1024,
        shape=replace(_BURST, requests_per_client=2, slo=Slo(ttft_s=2.0, tpot_s=0.2)),
    ),
    Preset(
        name="overhead-shared", title="32 prompts at once that share 1,024 tokens, 152k vocabulary",
        model=TINY_152K, n_slots=16, n_ctx=1152, shape=_SHARED,
    ),
    Preset(
        name="overhead-chats", title="64 conversations of six turns on 16 slots", model=SPEAKING,
        n_slots=16, n_ctx=2048,
        shape=_MANY_CHATS,
    ),
    Preset(
        name="hybrid-chats", title="64 conversations of six turns on 16 slots, a hybrid shape of 0.5B",
        model=HYBRID, n_slots=16, n_ctx=2048, shape=_MANY_CHATS,
    ),
    Preset(
        name="overhead-intruder", title="15 streams, and a 4,096-token prompt every two seconds",
        model=TINY_152K, n_slots=16, n_ctx=4352,
        shape=_closed(
            "overhead-intruder", "15 steady streams beside prompts of 4,096 tokens; no prompt comes twice.",
            clients=(15,), waves=2, prompt=Uniform(low=32, high=96), n_output=256,
            intruder=Intruder(every_s=2.0, prompt_tokens=4096, output_tokens=16),
            slo=Slo(tpot_s=0.1, itl_s=0.2),
        ),
    ),
]  # fmt: skip
PRESETS = {preset.name: preset for preset in (*_REAL, *_OVERHEAD)}


@dataclass(frozen=True, slots=True)
class InProcessCase:
    """The engine without HTTP against llama-server without streaming: `n_requests` at once, 16 slots."""

    model: str
    n_requests: int
    n_prompt: int
    n_output: int


IN_PROCESS = (
    InProcessCase(TINY, 32, 128, 64),
    InProcessCase(TINY_152K, 32, 128, 64),
    InProcessCase("builtin:synthetic-qwen2.5-0.5b", 16, 64, 24),
)
