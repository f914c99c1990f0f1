"""A chat's body -> the text that the model continues, and how its answers are to be read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from cobali_ray.api.body.images import ChatImages
from cobali_ray.api.body.reading import check_choice
from cobali_ray.api.body.schema import ChatBody
from cobali_ray.api.call.messages import ending_of, messages_of
from cobali_ray.api.call.tools import Offer, offer_of, tool_for_model
from cobali_ray.backend.port import Words
from cobali_ray.chat.format import Format
from cobali_ray.chat.generic import tell
from cobali_ray.core.request.media import Image
from cobali_ray.core.request.request import ReasoningBudget
from cobali_ray.errors import InvalidParameterError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
FIELDS = {"auto": "reasoning_content", "deepseek": "reasoning_content", "parsed": "reasoning"}
"""Where each format has the reasoning: `deepseek` is llama-server's name for `auto`, `parsed` is Groq's."""
FORMATS = (*FIELDS, "none")
N_TAIL = 512
"""Characters of a prompt that tell how its answer begins; no marker is longer."""

_OWN_FIELDS = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
    | {"bos_token", "eos_token"}
)
"""Variables that a template gets from elsewhere."""


class Speech(NamedTuple):
    """How the answers of a chat are to be read."""

    form: Format
    prompt: str
    """What they continue."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Those that may be called."""
    reasoning_field: str | None = "reasoning_content"
    """Where clients find the reasoning; None: it is left out."""
    must_call: bool = False
    """Whether what is no reasoning is calls."""
    continues: bool = False
    """Whether they go on with a text that the prompt has begun, so that white space in front is theirs."""


class ChatPrompt(NamedTuple):
    text: str
    end: str
    """As much of its end as tells how the answer begins."""
    offer: Offer
    speech: Speech | None
    """None: answers are text and nothing else."""
    shown_tokens: tuple[int, ...]
    """Control tokens in markers that `speech` has to see."""
    budget: ReasoningBudget | None
    ignored: tuple[str, ...]
    """Names of fields that changed nothing."""
    images: tuple[Image, ...] = ()
    """In the order of their markers."""


def prompt_of(body: ChatBody, words: Words, *, strict: bool, images: bool = False) -> ChatPrompt:
    """Return what the model continues. Raises BadRequestError.

    `images`: messages may have some. Then `images.tokens_of` makes the tokens of the text.
    """
    chat_images = ChatImages() if images else None
    messages, ignored = messages_of(body, strict=strict, images=chat_images)
    offer, form = offer_of(body), words.form
    tools = [tool_for_model(tool) for tool in offer.tools]
    chat = tell(form, messages, tools)
    text = words.chat.render(
        chat, tools=tools if form.native else None, **ending_of(body), **_variables(body)
    )
    end = text[-N_TAIL:]
    if body.continue_final_message and _is_reasoning(form, messages[-1]["content"]):
        end = form.reasoning_start
    speech = _speech(body, form, end, offer)
    if speech is not None and body.continue_final_message and not speech.must_call:
        speech = speech._replace(continues=_goes_on(form, messages[-1]["content"]))
    shown_tokens = () if form.plain and speech is None else sorted(words.markers.control_tokens(form.markers))
    budget, files = _budget(body, words, end), () if chat_images is None else tuple(chat_images.files)
    return ChatPrompt(text, end, offer, speech, tuple(shown_tokens), budget, ignored, files)


def _is_reasoning(form: Format, content: str) -> bool:
    """Tell whether an assistant's message that goes on is still in its reasoning. A text may name marks."""
    start, end, text = form.reasoning_start, form.reasoning_end, content.lstrip()
    while start and end and text.startswith(start):
        _, closed, text = text.partition(end)
        if not closed:
            return True
        text = text.lstrip()
    return False


def _goes_on(form: Format, content: str) -> bool:
    """Tell whether an assistant's message breaks off in a text, and not where reasoning begins or ends."""
    text, marks = content.rstrip(), (form.reasoning_start, form.reasoning_end)
    return bool(text) and not text.endswith(tuple(filter(None, marks)))


def _variables(body: ChatBody) -> dict[str, Any]:
    """Return the variables of the template's own that a body sets."""
    kwargs = body.chat_template_kwargs or {}
    if reserved := _OWN_FIELDS & kwargs.keys():
        name = min(reserved)
        param = ("chat_template_kwargs", name)
        raise InvalidParameterError(param, f"cannot be set: the server sets {name}")
    thinks = _thinks(body)
    # The names that templates have for it; they look at no others.
    variables: dict[str, Any] = {} if thinks is None else {"enable_thinking": thinks, "thinking": thinks}
    effort = body.reasoning_effort
    if effort is None:
        return variables | kwargs
    check_choice("reasoning_effort", effort, EFFORTS)
    return variables | {"reasoning_effort": effort} | kwargs


def _thinks(body: ChatBody) -> bool | None:
    """Return whether the model is to reason, in whichever way the body says so; None: it does not say."""
    fields = {
        "enable_thinking": body.enable_thinking,
        "thinking": None if body.thinking is None else body.thinking.thinks,
        "reasoning_effort": False if body.reasoning_effort == "none" else None,
    }
    choices = {name: thinks for name, thinks in fields.items() if thinks is not None}
    if len(set(choices.values())) > 1:
        first, *_, last = choices
        raise InvalidParameterError(last, f"and {first} contradict each other")
    return next(iter(choices.values()), None)


def _budget(body: ChatBody, words: Words, end: str) -> ReasoningBudget | None:
    n_tokens = body.reasoning_budget
    if n_tokens is None and body.thinking is not None:
        n_tokens = body.thinking.budget_tokens
    marks = words.form.reasoning_marks(end)
    if n_tokens is None or n_tokens < 0 or marks is None:
        return None
    closing = words.tokenize(marks.closing, add_special=False, parse_special=True)
    return ReasoningBudget(n_tokens, marks.start, marks.end, tuple(closing))


def _speech(body: ChatBody, form: Format, end: str, offer: Offer) -> Speech | None:
    chosen = body.reasoning_format or "auto"
    check_choice("reasoning_format", chosen, FORMATS)
    if chosen == "none":
        marks = [mark for mark in (form.reasoning_start.strip(), form.reasoning_end.strip()) if mark]
        noise = tuple(part for part in form.noise if not any(part in mark or mark in part for mark in marks))
        form = replace(form, reasoning_start="", reasoning_end="", noise=noise, reads_reasoning=False)
    if form.plain and not offer.callable:
        return None
    field = None if body.include_reasoning is False else FIELDS.get(chosen, FIELDS["auto"])
    return Speech(form, end, offer.callable, reasoning_field=field, must_call=offer.required)
