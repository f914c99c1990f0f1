"""The dispatcher's vocabulary: events in, instructions out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.events import EngineEvent
from cobali_ray.core.request.events import Event as ClientEvent
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.stats import Attendance, EngineState
from cobali_ray.errors import CobaliError

AnyRequest: TypeAlias = Request | EmbeddingRequest

# -- events ---------------------------------------------------------------------------------------------


class RequestArrived(NamedTuple):
    """A client asks something of a model. Whatever happens, the request ends once."""

    request: AnyRequest
    model: str


class RequestLeft(NamedTuple):
    """The client of a request, or of a load, has left; those that are over are ignored."""

    request_id: str


class Attended(NamedTuple):
    """An engine answered the call that keeps in touch with it."""

    engine_id: str
    attendance: Attendance
    called_s: float
    """When the call was made."""


class Described(NamedTuple):
    """An engine's model is known here, with its vocabulary: requests for it can be read.

    `model` identifies its files; "": as it was attended.
    """

    engine_id: str
    model: str = ""


class Silent(NamedTuple):
    """An engine has not answered for so long."""

    engine_id: str
    silent_s: float
    called_s: float
    """When the call was made that it has not answered."""
    ended: bool
    """Whether its process is known to have ended."""


class Lost(NamedTuple):
    """The call that keeps in touch with an engine failed."""

    engine_id: str


class EventsReceived(NamedTuple):
    """Events of requests came from an engine; `source` tells by which way."""

    events: Sequence[EngineEvent]
    source: str


class Unreadable(NamedTuple):
    """Events of these requests cannot be decoded."""

    request_ids: Sequence[str]


class Unheard(NamedTuple):
    """These sources of an engine are silent, or messages of theirs are missing.

    "" is the source of requests that have had no event.
    """

    engine_id: str
    sources: Collection[str]


class Returned(NamedTuple):
    """The control call of a request has returned. None: it ran to its end, and its last events follow."""

    engine_id: str
    request_id: str
    error: CobaliError | None


class LoadRequested(NamedTuple):
    """A caller waits until engines of a model are loaded."""

    ticket: str
    model: str
    n_engines: int


class EngineLoaded(NamedTuple):
    """An engine has loaded its model, or could not."""

    engine_id: str
    error: CobaliError | None = None


class Surveyed(NamedTuple):
    """The state of all engines."""

    states: Sequence[EngineState]


class EngineUnloaded(NamedTuple):
    """An engine has freed its model's memory, or could not."""

    engine_id: str
    error: CobaliError | None = None


class WakeDue(NamedTuple):
    """The time that a Wake asked for has come."""

    at_s: float


class ServerStopping(NamedTuple):
    """The server stops once its open requests have ended."""


Event: TypeAlias = (
    RequestArrived | RequestLeft | Attended | Described | Silent | Lost | EventsReceived | Unreadable
    | Unheard | Returned | LoadRequested | EngineLoaded | Surveyed | EngineUnloaded | WakeDue | ServerStopping
)  # fmt: skip

# -- instructions ---------------------------------------------------------------------------------------


class Send(NamedTuple):
    """Have an engine compute a request. `client_id` is the id that the client's request has."""

    engine_id: str
    client_id: str
    request: AnyRequest


class Cancel(NamedTuple):
    """Cancel what was sent to an engine under this id."""

    engine_id: str
    request_id: str


class Deliver(NamedTuple):
    """Pass this on to the client; an End is the last that it gets."""

    request_id: str
    event: ClientEvent


class Fail(NamedTuple):
    """End a request whose client has received nothing, by raising this error."""

    request_id: str
    error: CobaliError


class LoadEngine(NamedTuple):
    """Have an engine load its model, and describe it."""

    engine_id: str


class UnloadEngine(NamedTuple):
    """Have an engine give its model's memory back."""

    engine_id: str


class Survey(NamedTuple):
    """Ask all engines for their state."""


class AnswerLoad(NamedTuple):
    """Send the result of a load to a caller that waits for it."""

    ticket: str
    error: CobaliError | None


class Kill(NamedTuple):
    """Kill a process that hangs, unless its id has been reused."""

    engine_id: str
    pid: int
    began: int


class Reattend(NamedTuple):
    """Give up the call that keeps in touch with an engine, and make another one."""

    engine_id: str


class HangUp(NamedTuple):
    """Cancel open calls to an engine, except those of requests."""

    engine_id: str


class Describe(NamedTuple):
    """Ask an engine again what it serves."""

    engine_id: str


class Wake(NamedTuple):
    """Send a WakeDue at this time."""

    at_s: float


class Log(NamedTuple):
    """Write a line."""

    level: Literal["info", "warning", "error"]
    event: str
    fields: Mapping[str, Any]


ToEngine: TypeAlias = Kill | Reattend | HangUp | Describe
"""Instructions for the client of an engine."""
Instruction: TypeAlias = (
    Send | Cancel | Deliver | Fail | LoadEngine | UnloadEngine | Survey | AnswerLoad | ToEngine | Wake | Log
)
