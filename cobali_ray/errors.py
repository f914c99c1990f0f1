"""Every error raised on purpose. The parent says whose fault it is; `args` rebuild it in another process.

What clients see of an error and what the metrics call it is defined by its class, and nowhere else.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["cancelled", "deadline", "bad_request", "refused", "error"]
Path: TypeAlias = tuple[str | int, ...]
"""Where in a body a field stands: the keys and indices that lead there."""
Field: TypeAlias = str | Path
"""A field of the body itself by its name, or any by its path."""
INTERNAL = "internal_error"
"""The code of errors whose text is for operators only."""


def path_of(field: Field) -> Path:
    """Return the path of a field, which may have been a list on its way between processes."""
    return (field,) if isinstance(field, str) else tuple(field)


def dotted(path: Path) -> str:
    """Return a path as OpenAI writes it: `messages[0].content`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


class CobaliError(Exception):
    """The root of all errors this package raises on purpose.

    A subclass with facts is a dataclass of them, in the order of `args`; `template` says them.
    """

    status: int = 500
    """Of the HTTP answer."""
    code: str = INTERNAL
    """How clients tell errors apart. A text is meant for clients if its code is not INTERNAL."""
    path: Path = ()
    """The field at fault, where there is one."""
    outcome: Outcome = "error"
    """What a request that ends with it counts as; `error` is our fault."""
    template: str = ""

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        return self.template.format_map(vars(self)) if self.template else super().__str__()

    def text(self, named: Callable[[Path], str] = dotted) -> str:
        """Return what it says; `named` writes the fields in it as the API that was called has them."""
        del named
        return str(self)

    @property
    def param(self) -> str | None:
        """The field at fault as OpenAI writes it."""
        return dotted(self.path) or None

    @property
    def reason(self) -> str:
        """What a refusal with it counts as."""
        return self.code


@dataclass(eq=False)
class MissingExtraError(CobaliError):
    module: str
    remedy: str
    """The command that installs it."""
    template = "this needs {module}, which is not installed: {remedy}"


class BadRequestError(CobaliError):
    """The client asked for something that cannot be done as asked."""

    status, code = 400, "invalid_request"
    outcome = "bad_request"


class InvalidParameterError(BadRequestError):
    """A parameter's value is out of range, of the wrong kind or not supported."""

    code = "invalid_value"

    def __init__(self, field: Field, *problem: str | Path) -> None:
        """`problem` goes on from the field's name, by a verb or a colon; one with paths is the whole."""
        parts = [part if isinstance(part, str) else tuple(part) for part in problem]
        self.path, self.problem = path_of(field), parts
        super().__init__(self.path, *parts)

    def __str__(self) -> str:
        return self.text()

    def text(self, named: Callable[[Path], str] = dotted) -> str:
        text = "".join(part if isinstance(part, str) else named(part) for part in self.problem)
        if any(isinstance(part, tuple) for part in self.problem):
            return text
        return f"{named(self.path)}{'' if text.startswith(':') else ' '}{text}"


class InvalidImageError(InvalidParameterError):
    """Not an image, one that is too large, or one sent in a way that is not supported."""

    code = "invalid_image"


class UnsupportedParameterError(InvalidParameterError):
    """A known field that would change the answer and is not supported."""

    code = "unsupported_parameter"


class UnknownParameterError(InvalidParameterError):
    """An unknown field, refused because the server runs with `strict: true`."""

    code = "unknown_parameter"


@dataclass(eq=False)
class PromptTooLongError(BadRequestError):
    """The prompt leaves no room for an answer in one slot; `max_tokens` is the answer that was asked for.

    Clients such as litellm tell this error from others by OpenAI's wording, so the text begins with it.
    """

    n_prompt: int
    max_tokens: int
    n_ctx_slot: int
    at_least: bool = False
    """It was refused before all of it was tokenised, and has `n_prompt` or more."""
    path = ("prompt",)
    code = "context_length_exceeded"

    def __str__(self) -> str:
        return self.text()

    def text(self, named: Callable[[Path], str] = dotted) -> str:
        more, prompt = "at least " if self.at_least else "", named(self.path)
        return (
            f"This model's maximum context length is {self.n_ctx_slot} tokens. However, you requested "
            f"{more}{self.n_prompt + self.max_tokens} tokens ({more}{self.n_prompt} in the {prompt}, "
            f"{self.max_tokens} in the completion). Shorten the {prompt}; "
            "operators can raise the setting n_ctx."
        )


class TextTooLongError(InvalidParameterError):
    """A text has more tokens than the model embeds at once. It begins with OpenAI's wording, see above."""

    code = "context_length_exceeded"

    def __init__(self, field: Field, n_least: int, n_most: int) -> None:
        super().__init__(field)
        self.args = self.path, n_least, n_most
        self.n_least, self.n_most = n_least, n_most

    def text(self, named: Callable[[Path], str] = dotted) -> str:
        return (
            f"This model's maximum context length is {self.n_most} tokens. However, {named(self.path)} has a "
            f"text of at least {self.n_least} tokens. Shorten it; operators can raise the setting n_ctx, as "
            "far as the model was trained for."
        )


@dataclass(eq=False)
class WrongTaskError(BadRequestError):
    """The model cannot do what its route is for."""

    model: str
    why: str
    path = ("model",)
    code = "model_not_supported"
    template = "The model '{model}' {why}."


@dataclass(eq=False)
class TooManyTokensError(BadRequestError):
    n_least: int
    n_most: int
    code = "too_many_tokens"
    template = "The text has at least {n_least} tokens; at most {n_most} are accepted."


@dataclass(eq=False)
class HeadersTooLargeError(BadRequestError):
    limit_bytes: int
    status, code = 431, "headers_too_large"
    template = "The headers are too large: a request may have {limit_bytes} bytes of them."


@dataclass(eq=False)
class BodyTooLargeError(BadRequestError):
    limit_bytes: int
    status, code = 413, "body_too_large"
    template = "The request body is larger than {limit_bytes} bytes (setting max_body_bytes)."


@dataclass(eq=False)
class BodyTimeoutError(BadRequestError):
    timeout_s: float
    status, code = 408, "body_timeout"
    template = "The request body stopped arriving: nothing came for {timeout_s:g} s."


@dataclass(eq=False)
class UnsupportedEncodingError(BadRequestError):
    encoding: str
    supported: str
    status, code = 415, "unsupported_encoding"
    template = "The content encoding {encoding!r} is not supported; send {supported} or none."


@dataclass(eq=False)
class MalformedBodyError(BadRequestError):
    why: str
    code = "invalid_json"
    template = "The request body must be one JSON object: {why}."


@dataclass(eq=False)
class MalformedFormError(BadRequestError):
    why: str
    code = "invalid_form"
    template = "The request body must be a form with a file: {why}."


@dataclass(eq=False)
class UnknownModelError(BadRequestError):
    model: str
    served: str
    status, code = 404, "model_not_found"
    path = ("model",)
    template = "The model '{model}' does not exist here; this server serves '{served}'."


@dataclass(eq=False)
class UnknownPathError(BadRequestError):
    method: str
    url_path: str
    status, code = 404, "unknown_path"
    template = "Unknown path: {method} {url_path}."


@dataclass(eq=False)
class WrongMethodError(BadRequestError):
    method: str
    url_path: str
    status, code = 405, "method_not_allowed"
    template = "Method {method} is not allowed for {url_path}."


class NoStoreError(BadRequestError):
    """Nothing is kept here."""

    status, code = 501, "not_supported"
    template = (
        "This server keeps no files, batches, responses, conversations or chats: start it with the setting "
        "data_dir, the folder to keep them in, as in `cobali serve --set data_dir=~/cobali-data`, or with "
        "data_url, a database."
    )


@dataclass(eq=False)
class NotInStoreError(BadRequestError):
    what: str
    object_id: str
    status, code = 404, "not_found"
    template = "There is no {what} with the id '{object_id}'."


@dataclass(eq=False)
class FileInUseError(BadRequestError):
    file_id: str
    batch_id: str
    status, code = 409, "file_in_use"
    template = "The file '{file_id}' is the input of the batch '{batch_id}', which has not ended."


@dataclass(eq=False)
class StoreFullError(BadRequestError):
    """A key has as much in the store as it may."""

    what: str
    setting: str
    status, code = 413, "store_full"
    template = "This key keeps {what} already (setting {setting}): delete some of it first."


@dataclass(eq=False)
class ChatChangedError(BadRequestError):
    """A chat was changed by another client since this one read it."""

    chat_id: str
    version: int
    status, code = 409, "chat_changed"
    template = "The chat '{chat_id}' is at version {version} now: read it, and send version {version}."


@dataclass(eq=False)
class StoreFailedError(CobaliError):
    """The store cannot be read or written, for instance because the disk is full or its database is away."""

    why: str
    status, code = 503, "store_failed"
    retry_after_s = 10.0
    template = "The server cannot use its store: {why}"


@dataclass(eq=False)
class BadLineError(BadRequestError):
    number: int
    why: str
    path = ("file",)
    code = "invalid_line"
    template = "line {number} {why}"


@dataclass(eq=False)
class BatchStateError(BadRequestError):
    batch_id: str
    status_text: str
    change: str
    status, code = 409, "wrong_batch_state"
    template = "The batch '{batch_id}' is {status_text} and cannot be {change}."


@dataclass(eq=False)
class ModelNotAllowedError(BadRequestError):
    model: str
    status, code = 403, "model_not_allowed"
    path = ("model",)
    template = "This API key may not use the model '{model}'."


class OperatorKeyError(BadRequestError):
    status, code = 403, "operator_key_needed"
    template = "This API key may not do that: it needs operator: true in the setting api_keys_file."


class WrongKeyError(BadRequestError):
    status, code = 401, "invalid_api_key"
    template = "Missing or wrong API key: send one of the configured api_keys as 'Authorization: Bearer KEY'."


@dataclass(eq=False)
class ForeignOriginError(BadRequestError):
    origin: str
    status, code = 403, "origin_not_allowed"
    template = (
        "Pages of the origin {origin!r} may not use this server; "
        "operators can add it to the setting allowed_origins."
    )


class ForeignSiteError(BadRequestError):
    """A browser fetches something for a page from elsewhere, and does not say which page."""

    status, code = 403, "origin_not_allowed"
    template = "Images and scripts of pages from elsewhere may not use this server."


@dataclass(eq=False)
class ForeignHostError(BadRequestError):
    host: str
    status, code = 403, "host_not_allowed"
    template = (
        "This server listens on loopback and does not answer to the name {host!r}; operators can "
        "add the origin of its pages, such as https://NAME, to the setting allowed_origins."
    )


@dataclass(eq=False)
class SlotBusyError(BadRequestError):
    slot_id: int
    why: str
    status, code = 409, "slot_busy"
    template = "Slot {slot_id} is not free: {why}; try again later."


@dataclass(eq=False)
class ModelBusyError(BadRequestError):
    n_open: int
    status, code = 409, "model_busy"
    template = "The model is still working on {n_open} requests; try again when they have finished."


class UnknownStreamError(BadRequestError):
    status, code = 404, "stream_not_found"
    template = "This key has no such stream: it was not resumable, or nobody read it for too long."


class StreamExistsError(BadRequestError):
    status, code = 409, "stream_exists"
    path = ("x-cobali-stream",)
    template = "A stream with this id exists already: choose another id, or continue reading that stream."


class StreamStoppedError(BadRequestError):
    status, code = 410, "stream_stopped"
    template = "This answer was stopped by DELETE /v1/streams/{{id}}."


class UnknownRequestError(BadRequestError):
    status, code = 404, "request_not_found"
    template = "This key has no request with this id that is running or has ended recently."


@dataclass(eq=False)
class SlotFileError(BadRequestError):
    why: str
    path = ("filename",)
    code = "invalid_slot_file"
    template = "The slot's file cannot be used: {why}."


@dataclass(eq=False)
class NoInfillError(BadRequestError):
    model: str
    status, code = 501, "infill_not_supported"
    template = (
        "The model {model} was not trained to fill text in: its vocabulary has no tokens for it. "
        "Serve one that was, such as Qwen2.5-Coder."
    )


@dataclass(eq=False)
class NotOfferedError(BadRequestError):
    """Something that another server does with its models."""

    what: str
    status, code = 403, "not_offered"
    template = "This server does not support {what}: its models are named in its settings."


class SlotFilesOffError(BadRequestError):
    status, code = 501, "not_supported"
    template = (
        "This server does not save slots: the setting slot_save_path is not set, "
        "or the model's cache cannot be split by slot."
    )


class DownloadsOffError(BadRequestError):
    status, code = 501, "not_supported"
    template = "This server does not download models for clients: the setting allow_downloads is off."


class FixedScalesError(BadRequestError):
    status, code = 501, "not_supported"
    template = (
        "Scales are set in the setting adapters and cannot change while the server runs: "
        "name an adapter as the model, or in the field lora."
    )


class RefusedError(CobaliError):
    """The server declines new work now; the same request may succeed later."""

    status, code = 503, "unavailable"
    outcome = "refused"
    retry_after_s: float = 1.0


@dataclass(eq=False)
class QueueFullError(RefusedError):
    """The bounded queue has no room for this request."""

    what: str
    limit: int
    retry_after_s: float
    status, code = 429, "queue_full"

    @property
    def reason(self) -> str:
        """Which of its bounds was reached: `queue_full_requests`, `queue_full_tokens`."""
        return f"{self.code}_{self.what}"

    def __str__(self) -> str:
        settings = {"requests": "max_queue", "tokens": "max_queue_tokens"}
        setting = settings.get(self.what, "max_body_bytes")
        return (
            f"The queue is full ({self.limit} {self.what}, setting {setting}); "
            f"try again in {math.ceil(self.retry_after_s)} s."
        )


@dataclass(eq=False)
class RateLimitError(RefusedError):
    """The request's key has used up one of its limits."""

    what: str
    limit: int
    retry_after_s: float
    status, code = 429, "rate_limit_exceeded"

    def __str__(self) -> str:
        return (
            f"Rate limit reached for this API key: {self.limit} {self.what}; "
            f"try again in {max(math.ceil(self.retry_after_s), 1)} s."
        )


@dataclass(eq=False)
class WaitTooLongError(RefusedError):
    predicted_s: float
    allowed_s: float
    allowed_by: str
    status, code = 429, "wait_too_long"
    template = (
        "The answer could not begin within {allowed_s:g} s ({allowed_by}): "
        "it is predicted to begin in {predicted_s:.1f} s."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.retry_after_s = self.predicted_s - self.allowed_s


class DrainingError(RefusedError):
    code = "draining"
    template = "The server is draining and accepts no new requests."


class LoadingError(RefusedError):
    """The engine is not there yet, or is being restarted."""

    code = "loading"
    template = "The model is still loading."


class ReleasedError(LoadingError):
    """The engine gave its model's memory back in a pause; its requests wait for the end of that."""

    template = "The model's memory was released in a pause."


class UnloadedError(LoadingError):
    """The engine holds no model at the moment; it loads one when asked to."""

    template = "The model is not loaded."


@dataclass(eq=False)
class NoRoomError(RefusedError):
    """There is no memory for a model now, and nothing idle that could make room for it."""

    n_bytes: int
    n_free_bytes: int
    code = "no_room"

    def __str__(self) -> str:
        return (
            f"The model needs {self.n_bytes >> 20} MiB, but only {self.n_free_bytes >> 20} MiB are free, "
            "and no idle model can be unloaded."
        )


@dataclass(eq=False)
class ModelTooLargeError(CobaliError):
    """A model that this machine can never hold."""

    n_bytes: int
    most_bytes: int
    status, code = 507, "model_too_large"

    def __str__(self) -> str:
        return (
            f"The model needs {self.n_bytes >> 20} MiB for weights and KV cells, but this machine has "
            f"{self.most_bytes >> 20} MiB; lower n_slots or n_ctx."
        )


class AdapterGoneError(RefusedError):
    """The adapter of a request is no longer loaded, or is now a different file."""

    code = "adapter_gone"
    template = "The adapter was changed while this request was being sent; send it again."


@dataclass(eq=False)
class DeadlineExceededError(CobaliError):
    timeout_s: float
    status, code = 504, "deadline_exceeded"
    path = ("timeout_s",)
    outcome = "deadline"
    template = "The request did not finish within its deadline of {timeout_s:g} s (timeout_s)."


class RequestCancelledError(CobaliError):
    """The client left, or its stream was no longer read."""

    code = "request_cancelled"
    outcome = "cancelled"
    template = "The request was cancelled."


class SupersededError(CobaliError):
    """A newer request of the same key, user and route took its place, as both had asked for."""

    status, code = 409, "superseded"
    outcome = "cancelled"
    template = "A newer request replaced this one (supersedes)."


class InternalError(CobaliError):
    """Our fault: a broken invariant, a failing backend."""


class InvariantError(InternalError):
    """The books do not balance. If the scheduler raises it, its notes say how that came about."""


@dataclass(eq=False)
class IllegalTransitionError(InvariantError):
    before: str
    event: str
    template = "event {event} is not allowed in status {before}"


class BackendError(InternalError):
    """The model backend refused or failed a batch."""


class CacheFullError(BackendError):
    """The KV cache has no room for the batch; nothing was computed."""


@dataclass(eq=False)
class SlotFaultError(BackendError):
    """One slot's part of a batch is at fault; the others can continue without it."""

    slot_id: int
    why: str
    template = "slot {slot_id}: {why}"


class EngineDiedError(InternalError):
    """The engine process ended while the request was in it."""

    code = "engine_died"
    template = "The engine stopped while it was working on this request; it restarts automatically."


class EventsLostError(InternalError):
    """Events of the request did not get from the engine to its client; the engine itself keeps running."""

    code = "events_lost"
    template = "Part of this answer was lost on the way from the engine; send the request again."


@dataclass(eq=False)
class ConfigError(CobaliError):
    """A setting the server cannot work with; `setting` names it."""

    setting: str
    message: str
    template = "{setting}: {message}"


@dataclass(eq=False)
class StartError(CobaliError):
    """Ray or Serve did not come up."""

    what: str
    why: str
    template = "{what} did not start: {why}"


class ModelNotFoundError(ConfigError):
    """The model reference leads nowhere."""


class NoServerError(ConfigError):
    """No server answers at an address."""


class NoAnswerError(CobaliError):
    """A server did not answer, or not completely; the message says why."""


class FrontEndError(CobaliError):
    """HAProxy's configuration is not what this version expects."""


def why_of(error: BaseException) -> str:
    """Return the message of somebody else's error on one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
