"""Events of a request, from its engine: deltas or vectors, then exactly one end; progress, computing.

Named tuples, because they are made once per token and travel as plain arrays.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

from cobali_ray.errors import CobaliError

FinishReason: TypeAlias = Literal["stop", "length"]
Tier: TypeAlias = Literal["none", "slot", "copy", "host", "disk"]
"""Which tier gave a prompt's reused prefix: its own slot, another slot, host memory, or
files that were read into it."""
TIERS: tuple[Tier, ...] = get_args(Tier)


class TokenLogprob(NamedTuple):
    """One token, drawn or of the prompt, and the likeliest in its place, by the model's raw distribution."""

    token_id: int
    piece: bytes
    logprob: float | None
    """None: it is the first token, which has none."""
    top: tuple[tuple[int, bytes, float], ...]
    """(token_id, piece, logprob), likeliest first."""
    rank: int | None = None
    """How many tokens are as likely or likelier; of a prompt's tokens only."""


class Delta(NamedTuple):
    """Text that became certain for one stream; never splits a character, never shows a stop string."""

    request_id: str
    text: str
    tokens: tuple[int, ...]
    """Output tokens that this delta accounts for; a token may have been held back by earlier ones."""
    logprobs: tuple[TokenLogprob, ...] = ()
    stats: RequestStats | None = None
    """The request's life so far, with the first delta that has tokens only."""
    prompt: tuple[TokenLogprob, ...] = ()
    """Tokens of the prompt whose logprobs were asked for: each is sent once, in order."""

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


class RequestStats(NamedTuple):
    """One request's numbers; durations in seconds, None for what it never reached.

    Arrival is that at the engine, unless stated otherwise.
    """

    n_prompt: int
    n_cached: int
    """Prompt tokens that were not computed, because a slot or host memory already held them."""
    n_output: int
    queue_s: float | None
    """Arrival to slot."""
    prefill_s: float | None
    """Slot to first output token."""
    ttft_s: float | None
    """Arrival to first output token."""
    decode_s: float | None
    """First to last output token."""
    e2e_s: float
    """Arrival to end event."""
    n_preempted: int = 0
    intake_s: float | None = None
    """From the HTTP request's arrival at the server to its arrival at the engine; None without HTTP."""
    cached_from: Tier = "none"
    """The tier that the cached tokens came from."""
    n_said: int = 0
    """Output tokens that earlier engines sent; the times are of this engine's tokens."""

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for answers of one token."""
        n_after = self.n_output - self.n_said - 1
        return None if self.decode_s is None or n_after < 1 else self.decode_s / n_after


class End(NamedTuple):
    """The last event of a request. Exactly one of `finish_reason` and `error` is set."""

    request_id: str
    finish_reason: FinishReason | None
    error: CobaliError | None
    stats: RequestStats
    stop: str | None = None
    """The stop string that ended it; None where something else did."""


class Vectors(NamedTuple):
    """The vectors, or scores, of some of a request's texts."""

    request_id: str
    rows: bytes
    """32-bit floats, little-endian, one text after another."""
    texts: tuple[int, ...]
    """The numbers of these texts."""


class RequestProgress(NamedTuple):
    """How far a request without a token is; sent only to clients that ask for it. Counts are tokens."""

    request_id: str
    n_processed: int
    """Computed tokens of its prompt, cached ones included."""
    n_cached: int
    n_prompt: int
    seconds: float
    """Since it had its first slot; 0 before."""
    n_ahead: int | None
    """Requests that will get a slot before it; None: it has one."""
    wait_s: float | None
    """How long until it has one; None: it has, or too little is known."""


class Computing(NamedTuple):
    """Sent before anything is computed for a request, which may kill the process, and when it only waits.

    For the ingress, not for clients: if the engine dies, it knows which requests may be the cause.
    """

    request_id: str
    on: bool


Event: TypeAlias = Delta | Vectors | RequestProgress | End
"""Events for clients."""
EngineEvent: TypeAlias = Event | Computing
"""Events that an engine sends."""
