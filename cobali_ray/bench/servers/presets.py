"""What `cobali bench peers` runs: a model, the servers' settings and a load, under one name."""

from __future__ import annotations

from dataclasses import dataclass

from cobali_ray.bench.load.shape import Fixed, Intruder, Prefix, Shape, Slo, Turns, Uniform

SPEAKING = "builtin:tiny"
"""What a client sends back of its answers has the same tokens; random ones are read otherwise."""
TINY, TINY_152K, HALF_B = (
    "builtin:synthetic-tiny",
    "builtin:synthetic-tiny-152k",
    "builtin:synthetic-qwen2.5-0.5b",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One comparison. `llama_args` are further arguments of llama-server, one server each."""

    name: str
    title: str
    model: str
    n_slots: int
    n_ctx: int
    shape: Shape
    llama_args: tuple[str, ...] = ("",)


def _closed(name: str, description: str, *, clients: int, waves: int, n_prompt: int, n_output: int) -> Shape:
    return Shape(
        name=name, description=description, seed=21, kind="closed", prompt=Fixed(tokens=n_prompt),
        output=Fixed(tokens=n_output), ignore_eos=True, warmup_requests=clients,
        slo=Slo(ttft_s=2.0, tpot_s=0.2), concurrency=(clients,), requests_per_client=waves,
    )  # fmt: skip


def _shared(name: str, of: str, model: str, *, fresh: bool) -> Preset:
    tokens = "new tokens" if fresh else "tokens of the round before"
    return Preset(
        name=name, title=f"32 prompts at once that share 1,024 {tokens}, {of}",
        model=model, n_slots=16, n_ctx=1152,
        shape=Shape(
            name=f"peers-{name}",
            description="32 prompts at once that begin with the same 1,024 tokens, 32 of their own.",
            seed=24, kind="open", rate_rps=1000.0, burstiness=1.0, n_requests=32, warmup_requests=0,
            prefix=Prefix(tokens=1024, n_groups=1, fresh=fresh),
            prompt=Fixed(tokens=32), output=Fixed(tokens=32),
            ignore_eos=True, slo=Slo(ttft_s=5.0, tpot_s=0.2),
        ),
    )  # fmt: skip


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            name="throughput",
            title="16 streams through the whole HTTP path, 152k vocabulary",
            model=TINY_152K, n_slots=16, n_ctx=1024,
            shape=_closed("peers-throughput", "16 clients, two requests each of 128 + 64 tokens, streamed.",
                          clients=16, waves=2, n_prompt=128, n_output=64),
        ),
        Preset(
            name="throughput-05b",
            title="16 streams through the whole HTTP path, the 0.5B shape",
            model=HALF_B, n_slots=16, n_ctx=1024,
            shape=_closed("peers-throughput-05b", "16 clients, one request each of 64 + 24 tokens, streamed.",
                          clients=16, waves=1, n_prompt=64, n_output=24),
        ),
        _shared("shared", "152k vocabulary", TINY_152K, fresh=True),
        _shared("shared-warm", "152k vocabulary", TINY_152K, fresh=False),
        _shared("shared-05b", "the 0.5B shape", HALF_B, fresh=True),
        Preset(
            name="conversations",
            title="64 conversations of six turns on 16 slots",
            model=SPEAKING, n_slots=16, n_ctx=2048,
            shape=Shape(
                name="peers-conversations",
                description="64 clients, each a conversation: six turns of 64 new tokens, answers of 32.",
                seed=25, kind="closed", prompt=Fixed(tokens=64), output=Fixed(tokens=32), ignore_eos=True,
                warmup_requests=0, slo=Slo(ttft_s=5.0, tpot_s=0.2), concurrency=(64,), requests_per_client=6,
                turns=Turns(n_turns=6),
            ),
        ),
        Preset(
            name="intruder",
            title="15 streams, and a 4,096-token prompt every two seconds",
            model=TINY_152K, n_slots=16, n_ctx=4352, llama_args=("", "-b 512", "-fa off"),
            shape=Shape(
                name="peers-intruder",
                description="15 steady streams, alone and beside an intruder; no prompt comes twice.",
                seed=22, kind="closed", prompt=Uniform(low=32, high=96), output=Fixed(tokens=256),
                ignore_eos=True, warmup_requests=15, slo=Slo(tpot_s=0.1, itl_s=0.2), concurrency=(15,),
                requests_per_client=2, intruder=Intruder(every_s=2.0, prompt_tokens=4096, output_tokens=16),
            ),
        ),
    )
}  # fmt: skip


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
    InProcessCase(HALF_B, 16, 64, 24),
)
