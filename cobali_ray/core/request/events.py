"""What the engine says about a request: deltas, or vectors, then exactly one end; and when it computes.

Named tuples, because they are made once per token and travel as plain arrays.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

from cobali_ray.errors import CobaliError

FinishReason: TypeAlias = Literal["stop", "length"]
Tier: TypeAlias = Literal["none", "slot", "copy", "host", "disk"]
"""Where a prompt's beginning came from: its own slot held it, another slot did, host memory, or
files that were read into it."""
TIERS: tuple[Tier, ...] = get_args(Tier)


class TokenLogprob(NamedTuple):
    """One token, drawn or of the prompt, and the likeliest in its place, by the model's raw distribution."""

    token_id: int
    piece: bytes
    logprob: float | None
    """None: nothing is before it, so nothing is known of it."""
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
    """Tokens of the prompt, whose logprobs were asked for: each is told once, and in their order."""

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


class RequestStats(NamedTuple):
    """One request's life in numbers; durations in seconds, None where it never came that far.

    Arrival is the engine's, where nothing else is said.
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
    """Where those that were not computed came from."""
    n_said: int = 0
    """Output tokens that another engine had said before; times are of those that came here."""

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
    """What became of some of a request's texts: of each a vector, or a score."""

    request_id: str
    rows: bytes
    """32-bit floats, little-endian, one text after another."""
    texts: tuple[int, ...]
    """Which texts they are of."""

    @property
    def stats(self) -> None:
        """Nothing is told of its life before its end."""
        return


class RequestProgress(NamedTuple):
    """How far a request is that has no token yet; told only to clients who ask for it. Counts are tokens."""

    request_id: str
    n_processed: int
    """Of its prompt, cached ones among them."""
    n_cached: int
    n_prompt: int
    seconds: float
    """Since it had its first slot; 0 before."""
    n_ahead: int | None
    """Requests that will get a slot before it; None: it has one."""
    wait_s: float | None
    """How long until it has one; None: it has, or too little is known."""

    @property
    def stats(self) -> None:
        """Nothing is told of its life yet."""
        return


class Computing(NamedTuple):
    """Said before anything is computed for a request, which may end the process, and when it only waits.

    Clients are not told. If the engine dies, it tells whose request may be why.
    """

    request_id: str
    on: bool


Event: TypeAlias = Delta | Vectors | RequestProgress | End
"""What clients are told."""
EngineEvent: TypeAlias = Event | Computing
"""What an engine says."""
