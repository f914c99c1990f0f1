"""Turn marks: the control tokens that turns of a chat begin with, and where they stand in a prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cobali_ray.backend.port import Words
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
    between: list[str] = []
    rest = text.partition(_QUESTION)[2]
    for content in (_ANSWER, _NEXT):
        before, content_itself, rest = rest.partition(content)
        if not content_itself:
            return tuple(between)
        between.append(before)
    return (*between, rest)


def turn_marks(words: Words) -> frozenset[int]:
    """Return the tokens that turns begin with, as the template has them; none where turns begin with words.

    Between two turns stand the control token that ends the first, if there is one, and the one that begins
    the second: `<|im_end|>` and `<|im_start|>`, `</s>` and `[INST]`. What ends a turn is an end token of the
    model's, or ends questions as well as answers.
    """
    between = [words.tokenize(text, add_special=False) for text in between_turns(words.chat)]
    firsts = [tokens[0] for tokens in between if tokens]
    ends = words.end_tokens | {token for token in firsts if len(firsts) == firsts.count(token)}
    marks = set[int]()
    for tokens in between:
        controls = [token for token in tokens if _is_control(words, token)]
        if len(controls) > 1 and controls[0] in ends:
            del controls[0]
        marks.update(controls[:1])
    return frozenset(marks)


def turns_of(prompt: Sequence[int], marks: Collection[int]) -> tuple[int, ...]:
    """Return at how many of a prompt's tokens its turns begin, without the first."""
    return tuple([i for i, token in enumerate(prompt) if token in marks and i]) if marks else ()


def _is_control(words: Words, token: int) -> bool:
    """Whether a token is no text: one that is hidden, or has the shape of a marker and is one token."""
    if not words.detokenize([token], special=False):
        return True
    text = words.detokenize([token]).strip()
    return len(text) > 2 and text[0] + text[-1] in {"<>", "[]"}
