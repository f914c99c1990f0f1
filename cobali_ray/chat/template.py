"""ChatTemplate: a model's own Jinja template, rendered as transformers renders it.

The template is code that came with the model. The sandbox keeps it from everything but its own values. Its
loops and calls end once it has taken `MAX_S` of processor time, so callers keep it off the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import TemplateError, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Add, Concat, Filter, For, Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from cobali_ray.errors import InvalidParameterError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For models that bring no template."""

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""The names under which reasoning of earlier turns is given, the usual one first."""

MAX_S = 2.0
"""Of processor time, for one rendering."""
MAX_CHARS = 1 << 26
"""Of a text that a template puts together, which could double itself."""

_END_S: ContextVar[float] = ContextVar("end_s")
_OPEN = "<-open-end->"
_STRANGER = "qzxvk"
_TEXT = "be brief"
_NAME = "ffname"
_USER = {"role": "user", "content": "hello"}

Messages = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """One template and the names of the tokens that it writes itself.

    A source that is no valid Jinja is no error here, because plain completions need no template: `unreadable`
    says what is wrong with it, and every rendering is refused.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        clock: Callable[[], datetime] = datetime.now,
        spent_s: Callable[[], float] = lambda: 0.0,
        most_s: float = MAX_S,
    ) -> None:
        """`spent_s` says how much processor time the calling thread has used; without it nothing ends."""
        self.source, self.bos, self.eos, self.unreadable = source, bos, eos, ""
        self._names: dict[str, Any] = {"bos_token": bos, "eos_token": eos, "documents": None}
        self._bounds = _Bounds(spent_s, most_s)
        environment = _Sandbox(clock, self._bounds)
        try:
            self._template = environment.from_string(_Bounded().visit(environment.parse(source)))
        except Exception as error:  # the model's code, and whatever it does to the compiler
            self.unreadable = str(error) or type(error).__name__
            self._template = environment.from_string("")
        self._wants_list = self._find_wants_list()
        self._wants_text = self._find_wants_text()
        self.wants_null = self._find_wants_null()
        """Whether it shows calls only in a turn whose content is null."""
        self.knows_developer = self._find_developer()
        """Whether it has a place of its own for messages of a developer."""

    def render(
        self,
        /,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Return the conversation as the model was trained to read it.

        `continue_final_message` cuts the text behind the last message's content, which leaves no place for a
        generation prompt, so `add_generation_prompt` is then without effect. The arguments of tool calls may
        be dicts or JSON; the template gets what it can work with. A developer's messages are a system's where
        the template does not know that role. `variables` are the template's own, such as `enable_thinking`.

        Raises InvalidParameterError with the template's words where it refuses the messages, or the tools if
        it takes the messages without them.
        """
        if self.unreadable:
            raise InvalidParameterError(
                "messages", f": the model's chat template cannot be read: {self.unreadable}"
            )
        chat = [self._message(message) for message in messages]
        final = _open_end(chat) if continue_final_message else ""
        render = partial(
            self._raw,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            **_plain(variables),
        )
        try:
            text = render(chat, tools=_plain(tools) or self._no_tools())
        except Exception as error:
            # The template is the model's code; whatever it raises, it refuses this conversation.
            param = "messages"
            if tools:
                with suppress(Exception):
                    render([self._message(message) for message in messages], tools=self._no_tools())
                    param = "tools"
            reason = str(error) or type(error).__name__
            refusal = ("the chat template refuses the ", (param,), f": {reason}")
            raise InvalidParameterError(param, *refusal) from error
        return _cut(text, final) if continue_final_message else text

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a message in the words of this template; reasoning goes under both names in use."""
        plain: dict[str, Any] = _plain(message)
        if plain.get("role") == "developer" and not self.knows_developer:
            plain["role"] = "system"
        reasoning = next((plain[name] for name in REASONING_FIELDS if plain.get(name) is not None), None)
        if reasoning is not None:
            plain = {"thinking": reasoning} | plain | {"reasoning_content": reasoning}
        if plain.get("tool_calls") and not plain.get("content"):
            plain["content"] = None if self.wants_null else ""
        for call in plain.get("tool_calls") or ():
            function = call.get("function", call)
            if "arguments" in function:
                function["arguments"] = self._arguments(function["arguments"])
        return plain

    def _arguments(self, arguments: Any) -> Any:
        if self._wants_text:
            return arguments if isinstance(arguments, str) else _to_json(arguments)
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                parsed = json.loads(arguments)
                return parsed if isinstance(parsed, dict) else arguments
        return arguments

    def _no_tools(self) -> list[Any] | None:
        return [] if self._wants_list else None

    def _raw(self, chat: list[dict[str, Any]], /, **variables: Any) -> str:
        self._bounds.begin()
        return self._template.render(self._names | {"messages": chat} | variables)

    def _tried(self, *chat: dict[str, Any], tools: list[Any] | None) -> str | None:
        """Render a few messages to see what comes; None is a refusal."""
        try:
            return self._raw(_plain(chat), tools=tools, add_generation_prompt=True)
        except Exception:  # as in `render`
            return None

    def _find_wants_list(self) -> bool:
        """Tell whether no tools must be an empty list: the template walks over them without asking."""
        return self._tried(_USER, tools=None) is None and self._tried(_USER, tools=[]) is not None

    def _find_wants_text(self) -> bool:
        """Tell whether the arguments of tool calls must be JSON already: a dict raises, a string does not."""
        for content in ("", None):
            as_dict, as_text = (
                self._tried(_USER, _call(arguments, content), tools=self._no_tools())
                for arguments in ({"a": 1}, '{"a": 1}')
            )
            if as_dict is None and as_text is not None:
                return True
        return False

    def _find_wants_null(self) -> bool:
        """Tell whether calls show only in a turn whose content is null."""
        arguments = '{"a": 1}' if self._wants_text else {"a": 1}
        empty, null = (
            self._tried(_USER, _call(arguments, content), tools=self._no_tools()) for content in ("", None)
        )
        return null is not None and _NAME in null and (empty is None or _NAME not in empty)

    def _find_developer(self) -> bool:
        """Tell whether the template knows the role developer.

        It does if a developer's text shows, and stands otherwise than that of a role which nobody knows. A
        template that writes any role's name into its markers does not: its model never saw that one.
        """
        developer, stranger = (
            self._tried({"role": role, "content": _TEXT}, _USER, tools=self._no_tools())
            for role in ("developer", _STRANGER)
        )
        if developer is None or _TEXT not in developer:
            return False
        return stranger is None or developer.lower() != stranger.lower().replace(_STRANGER, "developer")


class _Bounds:
    """How long the rendering of each thread may go on."""

    def __init__(self, spent_s: Callable[[], float], most_s: float) -> None:
        self._spent_s, self._most_s = spent_s, most_s

    def begin(self) -> None:
        """Begin to count."""
        _END_S.set(self._spent_s() + self._most_s)

    def check(self) -> None:
        """Raise TemplateError once it is too much."""
        if self._spent_s() > _END_S.get():
            raise TemplateError(
                f"it takes more than {self._most_s:g} s to render; send fewer or shorter ones"
            )

    @pass_context  # or a constant is filtered once and for all
    def paced(self, context: Context, items: Iterable[Any]) -> Iterator[Any]:
        """Yield what a loop runs over."""
        del context
        for item in items:
            self.check()
            yield item


@pass_context
def _sized(context: Context, value: Any) -> Any:
    del context
    if isinstance(value, str | list) and len(value) > MAX_CHARS:
        raise TemplateError(f"it puts together a text of more than {MAX_CHARS:,} characters")
    return value


class _Bounded(NodeTransformer):
    """Puts filters that raise around whatever can go on or grow without end."""

    def visit_For(self, node: For) -> Node:  # noqa: N802 - jinja2's own name
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "paced")
        return node

    def visit_Concat(self, node: Concat | Add) -> Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "sized")

    visit_Add = visit_Concat  # noqa: N815


def _filtered(node: Any, name: str) -> Filter:
    return Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Sandbox(SandboxedEnvironment):
    """The sandbox, which also looks at the time whenever a macro or anything else is called."""

    def __init__(self, clock: Callable[[], datetime], bounds: _Bounds) -> None:
        # Some templates append to lists. The immutable sandbox forbids that; here they get copies instead.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols])
        self._bounds = bounds
        self.filters |= {"paced": bounds.paced, "sized": _sized, "tojson": _to_json}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: clock().strftime(form)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls."""
        self._bounds.check()
        return super().call(*args, **kwargs)


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what the model wrote, for training; here it only lets its content through."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _plain(value: Any) -> Any:
    """Copy containers, so that a template can change nothing of its caller's."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _call(arguments: Any, content: str | None) -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _open_end(chat: list[dict[str, Any]]) -> str:
    """Mark the end of the last message's content, and return that content without the mark."""
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        chat[-1]["content"] = content + _OPEN + " "
        return content
    parts: list[Any] = content if isinstance(content, list) else []
    for part in reversed(parts):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + _OPEN + " "
            return text
    raise InvalidParameterError("messages", ": the last message has no text to continue")


def _cut(text: str, final: str) -> str:
    """Return the text up to the mark, without the space before it if the template trims contents."""
    head, mark, tail = text.rpartition(_OPEN)
    if not tail.startswith(" "):
        head = head.rstrip()
    if not mark or not head.rstrip().endswith(final.strip()):
        raise InvalidParameterError(
            "messages", ": the chat template changes the last message, so it cannot be continued"
        )
    return head
