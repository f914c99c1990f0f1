"""Turns: what a chat template writes between one turn and the next. Pure."""

from __future__ import annotations

from cobali_ray.chat.template import ChatTemplate
from cobali_ray.errors import InvalidParameterError

_QUESTION, _ANSWER, _NEXT = "Where were you?", "At the old mill.", "Who else was there?"


def between_turns(template: ChatTemplate) -> tuple[str, ...]:
    """Return what stands before an answer, before the question behind it, and where an answer is to begin.

    What the template does not render, or renders otherwise, is missing.
    """
    chat = [("user", _QUESTION), ("assistant", _ANSWER), ("user", _NEXT)]
    try:
        text = template.render(
            [{"role": role, "content": content} for role, content in chat],
            tools=None,
            add_generation_prompt=True,
        )
    except InvalidParameterError:
        return ()
    found: list[str] = []
    rest = text.partition(_QUESTION)[2]
    for content in (_ANSWER, _NEXT):
        before, content_itself, rest = rest.partition(content)
        if not content_itself:
            return tuple(found)
        found.append(before)
    return (*found, rest)
