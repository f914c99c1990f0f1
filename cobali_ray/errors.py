"""Every error raised on purpose. The parent says whose fault it is; `args` rebuild it in another process.

What clients are told of an error and what the metrics call it is defined by its class, and nowhere else.
"""

import math
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["cancelled", "deadline", "bad_request", "refused", "error"]
INTERNAL = "internal_error"
"""The code of errors whose text is for operators only."""


class CobaliError(Exception):
    """The root of all errors this package raises on purpose."""

    status: int = 500
    """Of the HTTP answer."""
    code: str = INTERNAL
    """How clients tell errors apart. A text is meant for clients if its code is not INTERNAL."""
    param: str | None = None
    """The field at fault, where there is one."""
    outcome: Outcome = "error"
    """What a request that ends with it counts as; `error` is our fault."""

    @property
    def reason(self) -> str:
        """What a refusal with it counts as."""
        return self.code


class MissingExtraError(CobaliError):
    """Something was asked for whose packages are an optional extra that is not installed."""

    def __init__(self, module: str, remedy: str) -> None:
        """`remedy` is the command that installs it."""
        super().__init__(module, remedy)
        self.module, self.remedy = module, remedy

    def __str__(self) -> str:
        return f"this needs {self.module}, which is not installed: {self.remedy}"


class BadRequestError(CobaliError):
    """The client asked for something that cannot be done as asked."""

    status = 400
    code = "invalid_request"
    outcome = "bad_request"


class InvalidParameterError(BadRequestError):
    """A parameter's value is out of range, of the wrong kind or not supported."""

    code = "invalid_value"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(param, message)
        self.param, self.message = param, message

    def __str__(self) -> str:
        return self.message


class InvalidImageError(InvalidParameterError):
    """Not an image, one that is too large, or one sent in a way that is not supported."""

    code = "invalid_image"


class UnsupportedParameterError(InvalidParameterError):
    """A known field that would change the answer and is not supported."""

    code = "unsupported_parameter"


class UnknownParameterError(InvalidParameterError):
    """An unknown field, refused because the server runs with `strict: true`."""

    code = "unknown_parameter"


class PromptTooLongError(BadRequestError):
    """The prompt leaves no room for an answer in one slot; `max_tokens` is the answer that was asked for.

    Clients such as litellm tell this error from others by OpenAI's wording, so the text begins with it.
    """

    param = "prompt"
    code = "context_length_exceeded"

    def __init__(self, n_prompt: int, max_tokens: int, n_ctx_slot: int, at_least: bool = False) -> None:
        """`at_least`: the prompt was refused before all of it was tokenised; it has `n_prompt` or more."""
        super().__init__(n_prompt, max_tokens, n_ctx_slot, at_least)
        self.n_prompt, self.max_tokens, self.n_ctx_slot = n_prompt, max_tokens, n_ctx_slot
        self.at_least = at_least

    def __str__(self) -> str:
        more = "at least " if self.at_least else ""
        return (
            f"This model's maximum context length is {self.n_ctx_slot} tokens. However, you requested "
            f"{more}{self.n_prompt + self.max_tokens} tokens ({more}{self.n_prompt} in the prompt, "
            f"{self.max_tokens} in the completion). Shorten the prompt; "
            "operators can raise the setting n_ctx."
        )


class TextTooLongError(BadRequestError):
    """A text has more tokens than the model embeds at once. It begins with OpenAI's wording, see above."""

    code = "context_length_exceeded"

    def __init__(self, param: str, n_least: int, n_most: int) -> None:
        super().__init__(param, n_least, n_most)
        self.param, self.n_least, self.n_most = param, n_least, n_most

    def __str__(self) -> str:
        return (
            f"This model's maximum context length is {self.n_most} tokens. However, {self.param} has a text "
            f"of at least {self.n_least} tokens. Shorten it; operators can raise the setting n_ctx, as far "
            "as the model was trained for."
        )


class WrongTaskError(BadRequestError):
    """The model cannot do what its route is for."""

    param = "model"
    code = "model_not_supported"

    def __init__(self, model: str, why: str) -> None:
        super().__init__(model, why)
        self.model, self.why = model, why

    def __str__(self) -> str:
        return f"The model '{self.model}' {self.why}."


class TooManyTokensError(BadRequestError):
    """A text has more tokens than the caller can use; it was not tokenised to its end."""

    code = "too_many_tokens"

    def __init__(self, n_least: int, n_most: int) -> None:
        super().__init__(n_least, n_most)
        self.n_least, self.n_most = n_least, n_most

    def __str__(self) -> str:
        return f"The text has at least {self.n_least} tokens; at most {self.n_most} are accepted."


class HeadersTooLargeError(BadRequestError):
    """The headers of a request are too long."""

    status = 431
    code = "headers_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"The headers of a request may have {self.limit_bytes} bytes in all."


class BodyTooLargeError(BadRequestError):
    """The HTTP body is over the operator's limit."""

    status = 413
    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"The request body is larger than {self.limit_bytes} bytes (setting max_body_bytes)."


class BodyTimeoutError(BadRequestError):
    """The sender of a body stopped in the middle of it."""

    status = 408
    code = "body_timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return f"No more of the request body arrived for {self.timeout_s:g} s."


class UnsupportedEncodingError(BadRequestError):
    """The HTTP body has a content encoding that is not read here."""

    status = 415
    code = "unsupported_encoding"

    def __init__(self, encoding: str, known: str) -> None:
        super().__init__(encoding, known)
        self.encoding, self.known = encoding, known

    def __str__(self) -> str:
        return f"The content encoding {self.encoding!r} is not supported; send {self.known} or none."


class MalformedBodyError(BadRequestError):
    """The HTTP body is not a JSON object."""

    code = "invalid_json"

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"The request body must be one JSON object: {self.why}."


class UnknownModelError(BadRequestError):
    """A model name that this server does not serve."""

    status = 404
    param = "model"
    code = "model_not_found"

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(asked, served)
        self.asked, self.served = asked, served

    def __str__(self) -> str:
        return f"The model '{self.asked}' does not exist here; this server serves '{self.served}'."


class NotStoredError(BadRequestError):
    """A stored response was requested; none is stored."""

    status = 404
    code = "not_stored"

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id

    def __str__(self) -> str:
        return (
            f"Response with id '{self.response_id}' not found: this server stores no responses. "
            "Send the earlier items in input."
        )


class ModelNotAllowedError(BadRequestError):
    """A model that the request's key may not use."""

    status = 403
    param = "model"
    code = "model_not_allowed"

    def __init__(self, asked: str) -> None:
        super().__init__(asked)
        self.asked = asked

    def __str__(self) -> str:
        return f"This API key may not use the model '{self.asked}'."


class WrongKeyError(BadRequestError):
    """A missing or wrong API key."""

    status = 401
    code = "invalid_api_key"

    def __str__(self) -> str:
        return "Missing or wrong API key: send one of the configured api_keys as 'Authorization: Bearer KEY'."


class ForeignOriginError(BadRequestError):
    """The request comes from a web page that is neither the server's own nor allowed."""

    status = 403
    code = "origin_not_allowed"

    def __init__(self, origin: str) -> None:
        super().__init__(origin)
        self.origin = origin

    def __str__(self) -> str:
        return (
            f"Pages of the origin {self.origin!r} may not use this server; "
            "operators can add it to the setting allowed_origins."
        )


class ForeignHostError(BadRequestError):
    """A server on loopback was addressed by a public DNS name."""

    status = 403
    code = "host_not_allowed"

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return (
            f"This server listens on loopback and does not answer to the name {self.host!r}; operators can "
            "add the origin of its pages, such as https://NAME, to the setting allowed_origins."
        )


class SlotBusyError(BadRequestError):
    """A slot cannot be saved, filled or emptied now."""

    status = 409
    code = "slot_busy"

    def __init__(self, slot_id: int, why: str) -> None:
        super().__init__(slot_id, why)
        self.slot_id, self.why = slot_id, why

    def __str__(self) -> str:
        return f"Slot {self.slot_id} is not free: {self.why}; try again later."


class ModelBusyError(BadRequestError):
    """A model cannot be unloaded now."""

    status = 409
    code = "model_busy"

    def __init__(self, n_open: int) -> None:
        super().__init__(n_open)
        self.n_open = n_open

    def __str__(self) -> str:
        return f"The model is still working on {self.n_open} requests; try again when they have finished."


class UnknownStreamError(BadRequestError):
    """A client wants to resume a stream that is not kept."""

    status = 404
    code = "stream_not_found"

    def __str__(self) -> str:
        return "This key has no such stream: it was not resumable, or nobody read it for too long."


class SlotFileError(BadRequestError):
    """A file from which a slot cannot be restored."""

    param = "filename"
    code = "invalid_slot_file"

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"The slot's file cannot be used: {self.why}."


class NoInfillError(BadRequestError):
    """The model's vocabulary has no tokens that say where text is missing."""

    status = 501
    code = "infill_not_supported"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

    def __str__(self) -> str:
        return (
            f"The model {self.model} was not trained to fill text in: its vocabulary has no tokens for it. "
            "Serve one that was, such as Qwen2.5-Coder."
        )


class NotOfferedError(BadRequestError):
    """Something that another server does with its models."""

    status = 403
    code = "not_offered"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"This server does not support {self.what}: its models are named in its settings."


class SlotFilesOffError(BadRequestError):
    """Slots are not saved here."""

    status = 501
    code = "not_supported"

    def __str__(self) -> str:
        return (
            "This server does not save slots: the setting slot_save_path is not set, "
            "or the model's cache cannot be split by slot."
        )


class FixedScalesError(BadRequestError):
    """The scales of adapters are not changed while the server runs."""

    status = 501
    code = "not_supported"

    def __str__(self) -> str:
        return (
            "Scales are set in the setting adapters and cannot change while the server runs: "
            "name an adapter as the model, or in the field lora."
        )


class RefusedError(CobaliError):
    """The server declines new work now; the same request may succeed later."""

    status = 503
    code = "unavailable"
    outcome = "refused"
    retry_after_s: float = 1.0


class QueueFullError(RefusedError):
    """The bounded queue has no room for this request."""

    status = 429
    code = "queue_full"

    def __init__(self, what: str, limit: int, retry_after_s: float) -> None:
        super().__init__(what, limit, retry_after_s)
        self.what, self.limit, self.retry_after_s = what, limit, retry_after_s

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


class RateLimitError(RefusedError):
    """The request's key has used up one of its limits."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, what: str, limit: int, retry_after_s: float) -> None:
        super().__init__(what, limit, retry_after_s)
        self.what, self.limit, self.retry_after_s = what, limit, retry_after_s

    def __str__(self) -> str:
        return (
            f"Rate limit reached for this API key: {self.limit} {self.what}; "
            f"try again in {max(math.ceil(self.retry_after_s), 1)} s."
        )


class WaitTooLongError(RefusedError):
    """The request could not begin in the time that it or the operator allows; it was not let in."""

    status = 429
    code = "wait_too_long"

    def __init__(self, predicted_s: float, allowed_s: float, allowed_by: str) -> None:
        super().__init__(predicted_s, allowed_s, allowed_by)
        self.predicted_s, self.allowed_s, self.allowed_by = predicted_s, allowed_s, allowed_by
        self.retry_after_s = predicted_s - allowed_s

    def __str__(self) -> str:
        return (
            f"The answer could not begin within {self.allowed_s:g} s ({self.allowed_by}): "
            f"it is predicted to begin in {self.predicted_s:.1f} s."
        )


class DrainingError(RefusedError):
    """The server is shutting down: running requests finish, new ones are refused."""

    code = "draining"

    def __str__(self) -> str:
        return "The server is draining and takes no new requests."


class LoadingError(RefusedError):
    """The engine is not there yet, or is being restarted."""

    code = "loading"

    def __str__(self) -> str:
        return "The model is still loading."


class UnloadedError(LoadingError):
    """The engine holds no model at the moment; it loads one when it is told to."""

    def __str__(self) -> str:
        return "The model is not loaded."


class NoRoomError(RefusedError):
    """There is no memory for a model now, and nothing idle that could make room for it."""

    code = "no_room"

    def __init__(self, n_bytes: int, n_free_bytes: int) -> None:
        super().__init__(n_bytes, n_free_bytes)
        self.n_bytes, self.n_free_bytes = n_bytes, n_free_bytes

    def __str__(self) -> str:
        return (
            f"The model needs {self.n_bytes >> 20} MiB, but only {self.n_free_bytes >> 20} MiB are free, "
            "and no idle model can be unloaded."
        )


class ModelTooLargeError(CobaliError):
    """A model that this machine can never hold."""

    status = 507
    code = "model_too_large"

    def __init__(self, n_bytes: int, most_bytes: int) -> None:
        super().__init__(n_bytes, most_bytes)
        self.n_bytes, self.most_bytes = n_bytes, most_bytes

    def __str__(self) -> str:
        return (
            f"The model needs {self.n_bytes >> 20} MiB for weights and KV cells, but this machine has "
            f"{self.most_bytes >> 20} MiB; lower n_slots or n_ctx."
        )


class AdapterGoneError(RefusedError):
    """The adapter of a request is no longer loaded, or is now a different file."""

    code = "adapter_gone"

    def __str__(self) -> str:
        return "The adapter was changed while this request was on its way; send it again."


class DeadlineExceededError(CobaliError):
    """The request's own time limit passed before it was finished."""

    status = 504
    code = "deadline_exceeded"
    param = "timeout_s"
    outcome = "deadline"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return f"The request did not finish within its deadline of {self.timeout_s:g} s (timeout_s)."


class RequestCancelledError(CobaliError):
    """The client left, or its stream was no longer read."""

    code = "request_cancelled"
    outcome = "cancelled"

    def __str__(self) -> str:
        return "The request was cancelled."


class InternalError(CobaliError):
    """Our fault: a broken invariant, a failing backend."""


class InvariantError(InternalError):
    """The books do not balance. If the scheduler raises it, its notes say how that came about."""


class IllegalTransitionError(InvariantError):
    """A lifecycle event that the current status does not allow."""

    def __init__(self, status: str, event: str) -> None:
        super().__init__(status, event)
        self.before, self.event = status, event

    def __str__(self) -> str:
        return f"event {self.event} is not allowed in status {self.before}"


class BackendError(InternalError):
    """The model backend refused or failed a batch."""


class CacheFullError(BackendError):
    """The KV cache has no room for the batch; nothing was computed."""


class SlotFaultError(BackendError):
    """One slot's part of a batch is at fault; the others can continue without it."""

    def __init__(self, slot_id: int, why: str) -> None:
        super().__init__(slot_id, why)
        self.slot_id, self.why = slot_id, why

    def __str__(self) -> str:
        return f"slot {self.slot_id}: {self.why}"


class EngineDiedError(InternalError):
    """The engine process ended while the request was in it."""

    code = "engine_died"

    def __str__(self) -> str:
        return "The engine stopped while it was working on this request; it restarts automatically."


class EventsLostError(InternalError):
    """Events of the request did not get from the engine to its client; the engine itself keeps running."""

    code = "events_lost"

    def __str__(self) -> str:
        return "Part of this answer was lost on the way from the engine; send the request again."


class ConfigError(CobaliError):
    """A setting the server cannot work with; `setting` names it."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(setting, message)
        self.setting, self.message = setting, message

    def __str__(self) -> str:
        return f"{self.setting}: {self.message}"


class StartError(CobaliError):
    """Ray or Serve did not come up."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what} did not start: {self.why}"


class ModelNotFoundError(ConfigError):
    """The model reference leads nowhere."""


class NoServerError(ConfigError):
    """No server answers at an address."""


class NoAnswerError(CobaliError):
    """A server did not answer, or not completely; the message says why."""


class FrontEndError(CobaliError):
    """HAProxy's configuration is not what this version expects."""


def why_of(error: Exception) -> str:
    """Return the message of somebody else's error on one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
