"""The chat template of the model: what makes text of a conversation with tools, in training as in the server."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from cobali_ray.chat.template import ChatTemplate
from training.corpus.example import Turn

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)


def source() -> str:
    """Return the template as the model's file holds it."""
    return (resources.files("cobali_workloads.models") / "chatml.jinja").read_text(encoding="utf-8")


@functools.cache
def template() -> ChatTemplate:
    """Return the template to render with."""
    return ChatTemplate(source())


def as_turns(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Return a conversation with tools as plain turns, whose texts are what the template makes of them."""
    text = template().render(messages, tools=tools, add_generation_prompt=False)
    return tuple(Turn(role, content) for role, content in _TURN.findall(text))
