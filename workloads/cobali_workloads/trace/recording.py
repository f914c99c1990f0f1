"""Recording: answers of /debug/ticks, joined to one story per engine process. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cobali_ray.errors import ConfigError

Json: TypeAlias = dict[str, Any]


def incarnation_of(feed: Json) -> str:
    """Return which process an answer tells of; older answers call it otherwise."""
    engine = feed["engine"]
    return str(engine["incarnation_id"] if "incarnation_id" in engine else engine["id"])


@dataclass(slots=True)
class EngineStory:
    """What one engine process did. Moments are seconds on its clock."""

    engine: Json
    now_s: float
    unix_s: float
    """The wall clock at `now_s`."""
    ticks: dict[int, Json] = field(default_factory=dict)
    requests: dict[str, Json] = field(default_factory=dict)
    """The last record of each request."""


class Recording:
    """Takes answers in the order they came; a tick or request that comes twice is kept once."""

    def __init__(self) -> None:
        self.stories: dict[str, EngineStory] = {}

    def add(self, feed: Json) -> None:
        """Take one answer. Raises ConfigError if it is none."""
        try:
            story = self.stories.setdefault(
                incarnation_of(feed), EngineStory(feed["engine"], feed["now_s"], feed["unix_s"])
            )
            story.engine, story.now_s, story.unix_s = feed["engine"], feed["now_s"], feed["unix_s"]
            story.ticks.update((tick["tick_id"], tick) for tick in feed["ticks"])
            story.requests.update((request["request_id"], request) for request in feed["requests"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError("trace", f"this is no answer of /debug/ticks: {error!r}") from error

    @property
    def request_ids(self) -> set[str]:
        """Every name under which a request was recorded anywhere."""
        return {request_id for story in self.stories.values() for request_id in story.requests}

    @property
    def n_ticks(self) -> int:
        """Ticks recorded."""
        return sum(len(story.ticks) for story in self.stories.values())

    @property
    def n_requests(self) -> int:
        """Requests recorded, open and ended."""
        return sum(len(story.requests) for story in self.stories.values())
