"""Every error raised on purpose. The parent says whose fault it is; `args` rebuild it after pickling."""


class CobaliError(Exception):
    """The root of all errors this package raises on purpose."""


class MissingExtraError(CobaliError):
    """Something was asked for whose packages are an optional extra that is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(extra, module)
        self.extra, self.module = extra, module

    def __str__(self) -> str:
        return f"this needs {self.module}, which is not installed: pip install 'cobali-ray[{self.extra}]'"


class BadRequestError(CobaliError):
    """The client asked for something that cannot be done as asked; `param` names the field at fault."""

    param: str | None = None
    code: str | None = None


class InvalidParameterError(BadRequestError):
    """A parameter's value is out of range, of the wrong kind or not supported."""

    code = "invalid_value"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(param, message)
        self.param, self.message = param, message

    def __str__(self) -> str:
        return self.message


class UnsupportedParameterError(InvalidParameterError):
    """A known field that would change the answer and is not done here."""

    code = "unsupported_parameter"


class UnknownParameterError(InvalidParameterError):
    """A field nobody knows, refused because the server runs with `strict: true`."""

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


class TooManyTokensError(BadRequestError):
    """A text has more tokens than whoever asked can use; it was not tokenised to its end."""

    code = "too_many_tokens"

    def __init__(self, n_least: int, n_most: int) -> None:
        super().__init__(n_least, n_most)
        self.n_least, self.n_most = n_least, n_most

    def __str__(self) -> str:
        return f"The text has at least {self.n_least} tokens; at most {self.n_most} are accepted."


class BodyTooLargeError(BadRequestError):
    """The HTTP body is over the operator's limit."""

    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"The request body is larger than {self.limit_bytes} bytes (setting max_body_bytes)."


class BodyTimeoutError(BadRequestError):
    """The sender of a body stopped in the middle of it."""

    code = "body_timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return f"The request body did not go on for {self.timeout_s:g} s."


class UnsupportedEncodingError(BadRequestError):
    """The HTTP body has a content encoding that is not read here."""

    code = "unsupported_encoding"

    def __init__(self, encoding: str, known: str) -> None:
        super().__init__(encoding, known)
        self.encoding, self.known = encoding, known

    def __str__(self) -> str:
        return f"Bodies with the content encoding {self.encoding!r} are not read; send {self.known} or none."


class MalformedBodyError(BadRequestError):
    """The HTTP body is no JSON object."""

    code = "invalid_json"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"The request body must be one JSON object: {self.reason}."


class UnknownModelError(BadRequestError):
    """A model name that this server does not serve."""

    param = "model"
    code = "model_not_found"

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(asked, served)
        self.asked, self.served = asked, served

    def __str__(self) -> str:
        return f"The model '{self.asked}' does not exist here; this server serves '{self.served}'."


class WrongKeyError(BadRequestError):
    """A missing or wrong API key."""

    code = "invalid_api_key"

    def __str__(self) -> str:
        return "Missing or wrong API key: send one of the configured api_keys as 'Authorization: Bearer KEY'."


class RefusedError(CobaliError):
    """The server declines new work now; the same request may succeed later."""

    retry_after_s: float = 1.0


class QueueFullError(RefusedError):
    """The bounded queue has no room for this request."""

    def __init__(self, what: str, limit: int, retry_after_s: float) -> None:
        super().__init__(what, limit, retry_after_s)
        self.what, self.limit, self.retry_after_s = what, limit, retry_after_s

    def __str__(self) -> str:
        settings = {"requests": "max_queue", "tokens": "max_queue_tokens"}
        setting = settings.get(self.what, "max_body_bytes")
        return (
            f"The queue is full ({self.limit} {self.what}, setting {setting}); "
            f"try again in {self.retry_after_s:.0f} s."
        )


class DrainingError(RefusedError):
    """The server is shutting down: running requests finish, new ones are refused."""

    def __str__(self) -> str:
        return "The server is draining and takes no new requests."


class LoadingError(RefusedError):
    """The engine is not there yet, or is being restarted."""

    def __str__(self) -> str:
        return "The model is still loading."


class DeadlineExceededError(CobaliError):
    """The request's own time limit passed before it was finished."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return f"The request did not finish within its deadline of {self.timeout_s:g} s (timeout_s)."


class RequestCancelledError(CobaliError):
    """The client left, or its stream was no longer read."""

    def __str__(self) -> str:
        return "The request was cancelled."


class InternalError(CobaliError):
    """Our fault: a broken invariant, a failing backend."""


class IllegalTransitionError(InternalError):
    """A lifecycle event that the current status does not allow."""

    def __init__(self, status: str, event: str) -> None:
        super().__init__(status, event)
        self.status, self.event = status, event

    def __str__(self) -> str:
        return f"event {self.event} is not allowed in status {self.status}"


class InvariantError(InternalError):
    """The books do not balance."""


class BackendError(InternalError):
    """The model backend refused or failed a batch."""


class CacheFullError(BackendError):
    """The KV cache has no room for the batch; nothing was computed."""


class SlotFaultError(BackendError):
    """One slot's part of a batch is at fault; the others may go on without it."""

    def __init__(self, slot_id: int, reason: str) -> None:
        super().__init__(slot_id, reason)
        self.slot_id, self.reason = slot_id, reason

    def __str__(self) -> str:
        return f"slot {self.slot_id}: {self.reason}"


class EngineDiedError(InternalError):
    """The engine process ended while the request was in it."""

    def __str__(self) -> str:
        return "The engine stopped while it worked on this request; it restarts by itself."


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


class FrontEndError(CobaliError):
    """HAProxy's configuration is not as this version knows it."""
