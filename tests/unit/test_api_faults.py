"""Errors and field names -> what a client is told."""

import pickle
import re
from pathlib import Path

import pytest

from cobali_ray import errors
from cobali_ray.api.body.fields import (
    NEUTRAL_FIELDS,
    NEUTRAL_MESSAGE_FIELDS,
    REFUSED_FIELDS,
    REFUSED_MESSAGE_FIELDS,
    judge,
)
from cobali_ray.api.body.schema import ChatBody, CompletionBody, Message
from cobali_ray.api.door.faults import fault_of, is_our_fault, retry_after
from cobali_ray.api.door.ids import header_value
from cobali_ray.errors import (
    BackendError,
    BadRequestError,
    BodyTooLargeError,
    ConfigError,
    DeadlineExceededError,
    DrainingError,
    EngineDiedError,
    EventsLostError,
    HeadersTooLargeError,
    InvalidParameterError,
    LoadingError,
    MalformedBodyError,
    ModelTooLargeError,
    PromptTooLongError,
    QueueFullError,
    RefusedError,
    RequestCancelledError,
    SlotBusyError,
    SlotFileError,
    SlotFilesOffError,
    TextTooLongError,
    UnknownModelError,
    UnknownParameterError,
    UnsupportedParameterError,
    WrongKeyError,
    dotted,
)

ROWS = [
    (BadRequestError("no"), 400, "invalid_request_error", None, "invalid_request"),
    (InvalidParameterError("n", "is bad"), 400, "invalid_request_error", "n", "invalid_value"),
    (UnsupportedParameterError("x", "is bad"), 400, "invalid_request_error", "x", "unsupported_parameter"),
    (UnknownParameterError("x", "is bad"), 400, "invalid_request_error", "x", "unknown_parameter"),
    (PromptTooLongError(9, 2, 8), 400, "invalid_request_error", "prompt", "context_length_exceeded"),
    (MalformedBodyError("cut"), 400, "invalid_request_error", None, "invalid_json"),
    (WrongKeyError(), 401, "authentication_error", None, "invalid_api_key"),
    (UnknownModelError("a", "b"), 404, "invalid_request_error", "model", "model_not_found"),
    (SlotBusyError(0, "it works"), 409, "invalid_request_error", None, "slot_busy"),
    (SlotFileError("it is damaged"), 400, "invalid_request_error", "filename", "invalid_slot_file"),
    (SlotFilesOffError(), 501, "server_error", None, "not_supported"),
    (ModelTooLargeError(2, 1), 507, "server_error", None, "model_too_large"),
    (HeadersTooLargeError(5), 431, "invalid_request_error", None, "headers_too_large"),
    (BodyTooLargeError(5), 413, "invalid_request_error", None, "body_too_large"),
    (QueueFullError("requests", 3, 2.1), 429, "rate_limit_error", None, "queue_full"),
    (DrainingError(), 503, "server_error", None, "draining"),
    (LoadingError(), 503, "server_error", None, "loading"),
    (RefusedError("later"), 503, "server_error", None, "unavailable"),
    (DeadlineExceededError(3), 504, "timeout", "timeout_s", "deadline_exceeded"),
    (EngineDiedError(), 500, "server_error", None, "engine_died"),
    (EventsLostError(), 500, "server_error", None, "events_lost"),
    (RequestCancelledError(), 500, "server_error", None, "request_cancelled"),
    (BackendError("secret"), 500, "server_error", None, "internal_error"),
    (ConfigError("secret", "secret"), 500, "server_error", None, "internal_error"),
    (ValueError("secret"), 500, "server_error", None, "internal_error"),
]


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"), [pytest.param(*r, id=type(r[0]).__name__) for r in ROWS]
)
def test_every_error_has_its_answer(error, status, kind, param, code):
    fault = fault_of(error)
    assert (fault.status, fault.type, fault.param, fault.code) == (status, kind, param, code)
    assert fault.body == {"error": {"message": fault.message, "type": kind, "param": param, "code": code}}
    assert "secret" not in fault.message
    assert ("retry-after" in fault.headers) == (status in {429, 503})
    assert ("www-authenticate" in fault.headers) == (status == 401)
    assert fault_of(pickle.loads(pickle.dumps(error))) == fault, "the same from the other process"
    ours = {"engine_died", "events_lost", "internal_error", "model_too_large"}
    assert is_our_fault(error) == (fault.code in ours)


TEXTS = [
    pytest.param(InvalidParameterError("n", "must be 1"), "N must be 1", id="verb"),
    pytest.param(InvalidParameterError(("a", 0), ": no such"), "A0: no such", id="colon"),
    pytest.param(
        InvalidParameterError("a", "the ", ("a",), " lacks a ", ("b", 1)), "the A lacks a B1", id="paths"
    ),
    pytest.param(PromptTooLongError(9, 2, 8), "Shorten the PROMPT;", id="prompt"),
    pytest.param(TextTooLongError(("a", 0), 9, 8), "A0 has a text", id="text"),
]


@pytest.mark.parametrize(("error", "text"), TEXTS)
def test_fields_are_written_as_the_api_has_them(error, text):
    fault = fault_of(error, named=lambda path: "".join(map(str, path)).upper())
    assert text in fault.message
    assert fault.param == "".join(map(str, error.path)).upper()
    assert dotted(error.path) in str(error), "an operator reads it as OpenAI has it"


def test_no_text_says_its_field_twice():
    calls = re.compile(r'ParameterError\(\s*"(\w+)",\s*f?"\1\b')
    twice = [path for path in Path(errors.__file__).parent.rglob("*.py") if calls.search(path.read_text())]
    assert not twice


def test_messages_carry_the_numbers():
    message = fault_of(PromptTooLongError(9, 2, 8)).message
    assert message.startswith(
        "This model's maximum context length is 8 tokens. However, you requested 11 tokens"
    )
    assert "(9 in the prompt, 2 in the completion)" in message
    too_large = fault_of(ModelTooLargeError(30_000 << 20, 24_000 << 20)).message
    assert "30000 MiB" in too_large
    assert "24000 MiB" in too_large
    assert "at least 11 tokens (at least 9 in" in fault_of(PromptTooLongError(9, 2, 8, True)).message
    assert fault_of(QueueFullError("requests", 3, 2.1)).headers == {"retry-after": "3"}


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (float("inf"), "1")]
)
def test_retry_after_is_whole_seconds_rounded_up(seconds, header):
    assert retry_after(seconds) == header


@pytest.mark.parametrize("name", sorted(REFUSED_FIELDS))
def test_a_refused_field_passes_only_when_it_asks_for_nothing(name):
    for nothing in (None, *REFUSED_FIELDS[name]):
        assert judge({name: nothing}, strict=True) == ()
    with pytest.raises(UnsupportedParameterError, match=name) as caught:
        judge({name: {"something": "else"}}, strict=False)
    assert caught.value.param == name


def test_no_field_has_two_fates():
    shapes = set(ChatBody.model_fields) & set(CompletionBody.model_fields)
    assert not NEUTRAL_FIELDS & set(REFUSED_FIELDS)
    assert not shapes & (NEUTRAL_FIELDS | set(REFUSED_FIELDS))
    assert not set(Message.model_fields) & (NEUTRAL_MESSAGE_FIELDS | set(REFUSED_MESSAGE_FIELDS))


def test_the_header_is_short_whatever_a_client_invents():
    names = tuple(f"é{'x' * 1000}{i}" for i in range(1000)) + tuple(map(str, range(1000)))
    value = header_value(names)
    assert value.isascii()
    assert len(value) < 4000
    assert value.endswith("and-1968-more")
