"""What a client asked: immutable values, valid by construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cobali_ray.core.request.media import Image, Rows
from cobali_ray.errors import Field, InvalidParameterError

MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1000
"""Of one stop string, and of one bad word. The engine prepares each for its search."""
MAX_STOP_TOKENS = 128
MAX_BAD_WORDS = 128
MAX_ALLOWED_TOKENS = 4096
"""More would be most of a vocabulary, and travel to the engine with every request."""
MAX_TRIGGERS = 128
"""Of one grammar. Each is looked for in every token until one is found."""
MAX_SHOWN_TOKENS = 128
MAX_CLOSING_TOKENS = 128
MIN_PRIORITY, MAX_PRIORITY = -9, 9


def require(param: str, value: float, *, low: float, high: float, open_low: bool = False) -> None:
    """Raise InvalidParameterError unless a parameter is in [low, high], or in (low, high]."""
    if not (low < value <= high or (value == low and not open_low)):  # NaN is neither
        bracket = "(" if open_low else "["
        raise InvalidParameterError(param, f"must be in {bracket}{low:g}, {high:g}], got {value}")


def _require_tokens(param: str, tokens: Sequence[int], n_vocab: int) -> None:
    if tokens and (min(tokens) < 0 or max(tokens) >= n_vocab):
        wrong = next(token for token in tokens if not 0 <= token < n_vocab)
        raise InvalidParameterError(param, f": token id {wrong} is not in 0 .. {n_vocab - 1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn from a row of logits.

    Order of work, as llama.cpp's default chain has it: logit_bias, penalties and bans, top_n_sigma, top_k,
    typical_p, top_p, min_p, temperature. `temperature` 0 is greedy. The neutral value of each is its default.
    """

    temperature: float = 1.0
    top_n_sigma: float = 0.0
    """Keep tokens whose logit is within so many standard deviations of the largest; 0 keeps all."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this total probability; 0 keeps the likeliest alone."""
    min_p: float = 0.0
    typical_p: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of every token seen in prompt or output.

    A divisor near 0 would make them infinite, which is how a broken model looks.
    """
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    """End tokens and stop tokens are not drawn before this many output tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Further tokens that end the answer, whatever `ignore_eos` says."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the answer must not hold: the last token of one is not drawn after the others."""
    allowed_token_ids: tuple[int, ...] = ()
    """No other token is drawn; empty: all are allowed."""
    n_logprobs: int | None = None
    """None: no logprobs. 0: the drawn token's only. k: the k likeliest as well."""

    def __post_init__(self) -> None:
        require("temperature", self.temperature, low=0, high=100)
        require("top_p", self.top_p, low=0, high=1)
        require("min_p", self.min_p, low=0, high=1)
        require("typical_p", self.typical_p, low=0, high=1, open_low=True)
        require("frequency_penalty", self.frequency_penalty, low=-2, high=2)
        require("presence_penalty", self.presence_penalty, low=-2, high=2)
        require("repetition_penalty", self.repetition_penalty, low=0.01, high=100)
        require("top_k", self.top_k, low=0, high=2**31 - 1)
        require("min_tokens", self.min_tokens, low=0, high=2**31 - 1)
        if self.seed is not None:
            require("seed", self.seed, low=-(2**63), high=2**64 - 1)
        if self.n_logprobs is not None:
            require("top_logprobs", self.n_logprobs, low=0, high=MAX_TOP_LOGPROBS)
        require("top_n_sigma", self.top_n_sigma, low=0, high=1000)
        for name, most in (
            ("stop_token_ids", MAX_STOP_TOKENS),
            ("bad_words", 2 * MAX_BAD_WORDS),  # with a space in front, and without
            ("allowed_token_ids", MAX_ALLOWED_TOKENS),
        ):
            if (n := len(getattr(self, name))) > most:
                raise InvalidParameterError(name, f"must not have more than {most} entries, got {n}")
        if not all(self.bad_words):
            raise InvalidParameterError("bad_words", ": a bad word must have at least one token")
        for _, bias in self.logit_bias:
            require("logit_bias", bias, low=-100, high=100)

    @property
    def penalises(self) -> bool:
        """Whether tokens seen before change the row."""
        return self.frequency_penalty != 0 or self.presence_penalty != 0 or self.repetition_penalty != 1

    def check_tokens(self, n_vocab: int) -> None:
        """Raise InvalidParameterError for a token, in any of the lists, that a vocabulary does not have."""
        lists = {
            "logit_bias": [token for token, _ in self.logit_bias],
            "stop_token_ids": self.stop_token_ids,
            "bad_words": [token for word in self.bad_words for token in word],
            "allowed_token_ids": self.allowed_token_ids,
        }
        for name, tokens in lists.items():
            _require_tokens(name, tokens, n_vocab)


NEUTRAL = SamplingParams()
"""OpenAI's defaults: the model's own distribution."""
GREEDY = SamplingParams(temperature=0.0)
TUNABLE = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty",
)  # fmt: skip
"""Parameters for which a model or an operator may have defaults of their own."""


def tuned(params: SamplingParams, values: Mapping[str, float]) -> SamplingParams:
    """Return the parameters with other values for those named. Raises InvalidParameterError."""
    changes: dict[str, Any] = dict(values)
    for name in values:
        if name not in TUNABLE:
            raise InvalidParameterError(name, f"is none of {', '.join(TUNABLE)}")
    if (top_k := values.get("top_k")) is not None:
        if not float(top_k).is_integer():
            raise InvalidParameterError("top_k", f"must be a whole number, got {top_k:g}")
        changes["top_k"] = 0 if top_k == -1 else int(top_k)  # -1 is how other servers say "all"
    return replace(params, **changes)


class Grammar(NamedTuple):
    """What an answer must look like."""

    text: str
    """The grammar's source; opaque to the engine."""
    field: Field
    """The field of the body that it came in."""
    triggers: tuple[str, ...] = ()
    """Texts of the answer, shown tokens among them; it holds behind the first that appears.

    None: from the beginning.
    """
    heads: tuple[str, ...] = ()
    """It holds, from the beginning, only for answers that begin with one of these texts; none: for any.

    White space counts only between quotes.
    """

    def check(self) -> None:
        """Raise InvalidParameterError for too many, too long or empty triggers."""
        triggers = self.triggers
        if len(triggers) > MAX_TRIGGERS:
            raise InvalidParameterError(self.field, f": at most {MAX_TRIGGERS} triggers, got {len(triggers)}")
        if any(len(text) > MAX_STOP_CHARS for text in triggers):
            raise InvalidParameterError(self.field, f": triggers must not exceed {MAX_STOP_CHARS} characters")
        if not all(triggers):
            raise InvalidParameterError(self.field, ": triggers must not be empty")


class ReasoningBudget(NamedTuple):
    """How long an answer may reason before it is made to end that."""

    n_tokens: int
    """Between the text that begins it and the one that ends it."""
    start: str
    """The text that begins it, at the beginning of the answer; "" where the prompt has begun it."""
    end: str
    """The text that ends it."""
    closing: tuple[int, ...]
    """Tokens that are forced then."""

    def check(self) -> None:
        """Raise InvalidParameterError for a budget that cannot be kept."""
        require("reasoning_budget", self.n_tokens, low=0, high=2**31 - 1)
        problem = None
        if not self.end:
            problem = "the text that ends reasoning must not be empty"
        elif max(len(self.start), len(self.end)) > MAX_STOP_CHARS:
            problem = f"the texts around reasoning must not exceed {MAX_STOP_CHARS} characters"
        elif not 0 < len(self.closing) <= MAX_CLOSING_TOKENS:
            problem = f"1 to {MAX_CLOSING_TOKENS} tokens close reasoning, got {len(self.closing)}"
        if problem:
            raise InvalidParameterError("reasoning_budget", f": {problem}")


class Program(NamedTuple):
    """The task of an agent, as far as one of its requests shows it."""

    name: str
    """The same in all of its requests, and in no other task's."""
    tools: str
    """Which tools it may call."""
    returns: bool
    """Whether the request brings what tools returned; else a person asks."""


class TraceLink(NamedTuple):
    """Where a request belongs in a distributed trace: W3C's two headers, and what spans are named after."""

    traceparent: str
    tracestate: str
    operation: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to continue: `prompt` token ids and what to do with them."""

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    """0: it ends when its prompt is computed."""
    sampling: SamplingParams = field(default=GREEDY)
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Show the stop string, or the stop token, that ended the answer."""
    grammar: Grammar | None = None
    shown_tokens: tuple[int, ...] = ()
    """Control tokens whose text the answer shows; those that end it never do."""
    reasoning_budget: ReasoningBudget | None = None
    timeout_s: float | None = None
    reply_to: str = ""
    """Where the events of this request go; opaque to the engine."""
    supersedes: str = ""
    """It ends older requests with the same word here, and newer ones end it; "": it does neither."""
    progress: bool = False
    """Whether its client gets its progress, until its first token."""
    trace: TraceLink | None = None
    """Set where spans are wanted; opaque to the engine."""
    model: str = ""
    """The name of what is asked for, the model or an adapter; opaque to the engine."""
    x_request_id: str = ""
    """The id of its HTTP request, as in the header and the log; opaque to the engine."""
    received_s: float | None = None
    """When its HTTP request began to arrive, on the machine's monotonic clock; None without HTTP."""
    cache_salt: str | None = ""
    """It shares what is computed only with requests of the same salt; None: with no other request."""
    n_prompt_logprobs: int | None = None
    """The same as `SamplingParams.n_logprobs` for the tokens of the prompt, all of which is computed then."""
    n_scored: int = 0
    """Prompt tokens whose logprobs were sent by an engine that is gone."""
    adapter: str = ""
    """The key of the adapter that it is computed under; see adapters.py."""
    n_plain: int = 0
    """How many tokens of its prompt are computed without the adapter, and shared as such; 0: none."""
    sent_tokens: tuple[int, ...] = ()
    """Output tokens sent by an engine that is gone: the answer continues after them."""
    served_elsewhere: float = 0.0
    """What other engines served its tenant since this one got the number last; see fair.py."""
    attempt: int = 0
    """How many engines had it before and did not finish it."""
    program: Program | None = None
    """The task that an agent sends it for, where it may call tools; see programs.py."""
    tenant: str = ""
    """The tenant: slots and the queue are shared fairly between tenants."""
    weight: float = 1.0
    """How much its tenant is to get, beside others."""
    priority: int = 0
    """Its class; the lower number goes first."""
    images: tuple[Image, ...] = ()
    """What stands where the prompt has negative ids, in their order."""
    rows: tuple[Rows, ...] = ()
    """The rows of the images, in the order of the prompt; set by the engine."""
    turns: tuple[int, ...] = ()
    """At how many of the prompt's tokens its turns begin, ascending, as far as it is known."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidParameterError("prompt", "must have at least one token")
        require("max_tokens", self.max_tokens, low=0, high=2**31 - 1)
        if self.n_prompt_logprobs is not None:
            require("prompt_logprobs", self.n_prompt_logprobs, low=0, high=MAX_TOP_LOGPROBS)
        if self.timeout_s is not None:
            require("timeout_s", self.timeout_s, low=0, high=1e9, open_low=True)
        require("n_plain", self.n_plain, low=0, high=len(self.prompt) - 1)
        require("weight", self.weight, low=0, high=1e6, open_low=True)
        require("priority", self.priority, low=MIN_PRIORITY, high=MAX_PRIORITY)
        if len(self.stop) > MAX_STOP_STRINGS:
            n_stop = len(self.stop)
            raise InvalidParameterError("stop", f": at most {MAX_STOP_STRINGS} strings, got {n_stop}")
        if any(len(text) > MAX_STOP_CHARS for text in self.stop):
            raise InvalidParameterError("stop", f": strings must not exceed {MAX_STOP_CHARS} characters")
        if any(not text for text in self.stop):
            raise InvalidParameterError("stop", ": strings must not be empty")
        if self.sent_tokens and len(self.sent_tokens) >= self.max_tokens:
            raise InvalidParameterError(
                "sent_tokens", f": {len(self.sent_tokens)} tokens are a whole answer already"
            )
        if len(self.shown_tokens) > MAX_SHOWN_TOKENS:
            n_shown = len(self.shown_tokens)
            raise InvalidParameterError(
                "shown_tokens", f"must not have more than {MAX_SHOWN_TOKENS} entries, got {n_shown}"
            )
        if self.grammar is not None:
            self.grammar.check()
        if self.reasoning_budget is not None:
            self.reasoning_budget.check()

    def check_tokens(self, n_vocab: int) -> None:
        """Raise InvalidParameterError for a token, in any of the lists, that a vocabulary does not have."""
        prompt = self.prompt
        if min(prompt) < 0 and self.rows:
            prompt = self.text_tokens
            if len(prompt) + sum([part.length for part in self.rows]) != self.n_prompt or self.prompt[-1] < 0:
                raise InvalidParameterError("prompt", ": rows of images stand where no images are")
        _require_tokens("prompt", prompt, n_vocab)
        self.sampling.check_tokens(n_vocab)
        _require_tokens("shown_tokens", self.shown_tokens, n_vocab)
        _require_tokens("sent_tokens", self.sent_tokens, n_vocab)
        if self.reasoning_budget is not None:
            _require_tokens("reasoning_budget", self.reasoning_budget.closing, n_vocab)

    @property
    def text_tokens(self) -> tuple[int, ...]:
        """The tokens of the prompt without what stands for images."""
        return tuple([token for token in self.prompt if token >= 0])

    @property
    def salt(self) -> str | None:
        """Its salt and adapter: only tokens that were computed under the same can be reused for it.

        Where the adapter is not used from the first token on, only plain tokens are shared.
        """
        if self.cache_salt is None or not self.adapter or self.n_plain:
            return self.cache_salt
        return f"{self.cache_salt}\n{self.adapter}"

    @property
    def common_prompt(self) -> tuple[int, ...]:
        """The tokens of its prompt that others of its salt can begin with."""
        return self.prompt[: self.n_plain] if self.n_plain else self.prompt

    @property
    def n_prompt(self) -> int:
        """Number of prompt tokens, rows of images among them."""
        return len(self.prompt)

    @property
    def n_most(self) -> int:
        """Most tokens this sequence can have, prompt and answer."""
        return len(self.prompt) + self.max_tokens
