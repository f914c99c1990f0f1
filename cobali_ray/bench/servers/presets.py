"""What `cobali bench peers` runs: a model, the servers' settings and a load, under one name."""

from __future__ import annotations

from dataclasses import dataclass

from cobali_ray.bench.load.shape import Fixed, Intruder, Shape, Slo, Uniform

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
