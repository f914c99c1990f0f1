"""Call grammar: holds a model's answer to well-formed calls of the offered tools, in the model's own format.

What is held: the markers, the names, the order of the parts and, by the tools' schemas, the arguments. White
space between the parts is free within narrow bounds. What the Splitter reads but no template writes is not
allowed: other fields, markers left out, several sections of calls.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from cobali_ray.chat.arguments import MAX_CHOICES, ArgumentsWriter, TooManyChoicesError
from cobali_ray.chat.format import ID, NUMBER, Format, Kind
from cobali_ray.chat.lark import ANY_TEXT, Rules, Special, joined, literal, one_of, optional
from cobali_ray.core.request.request import Grammar
from cobali_ray.errors import Field, InvalidParameterError, Path

MAX_CALLS = 32
"""Of one turn: small models repeat a call without end, where they may."""


class CallGrammar(NamedTuple):
    """What an answer is held to, and from where on."""

    text: str
    """A grammar as llguidance takes it: a list of grammars in JSON."""
    triggers: tuple[str, ...]
    """Texts of the answer; it holds from behind the first that comes. None: from the beginning."""
    ignored: tuple[Path, ...]
    """Keys of schemas that it does not hold answers to."""
    heads: tuple[str, ...] = ()
    """If any, it holds only answers that begin with one of these; others are free."""


class AcceptedGrammar(Protocol):
    @property
    def grammar(self) -> Grammar: ...
    @property
    def ignored(self) -> tuple[Path, ...]: ...


class GrammarCheck(Protocol):
    """Compiles one grammar, or raises InvalidParameterError that names `field`."""

    def __call__(
        self, field: Field, kind: Literal["json_schema", "llguidance"], text: str, *, strict: bool = False
    ) -> AcceptedGrammar: ...


def call_grammar(
    form: Format,
    tools: Sequence[Mapping[str, Any]],
    *,
    check: GrammarCheck,
    special: Special,
    prompt: str,
    names: Collection[str] = (),
    required: bool = False,
    parallel: bool = True,
    answer: str | None = None,
) -> CallGrammar | None:
    """Return what holds an answer to calls of these tools; None where no text marks the beginning of one.

    `names` are those that may be called; none: all of them. With `required`, the answer is calls and nothing
    else but reasoning before them. Else a call may come at any place, and is held from the end of the marker
    that opens it, or where none does, from the beginning of an answer that begins like a call; with an
    `answer`, a grammar in llguidance's list, the whole answer is calls or that.

    Raises InvalidParameterError for parameters that are no usable schema, and for keys that cannot be held
    where the function is `strict`.
    """
    functions = [(i, tool.get("function", tool)) for i, tool in enumerate(tools)]
    functions = [(i, function) for i, function in functions if not names or function["name"] in names]
    rules = Rules(special)
    writer = _Calls(form, rules, check, functions, several=parallel and form.calls.parallel)
    heads = tuple[str, ...]()
    if required or answer is not None:
        calls = joined(rules.space, writer.turn(form.primes(prompt)))
        if answer is not None and not required:
            calls = one_of([calls, _content(form, rules, prompt, answer)])
        text, triggers = rules.text(joined(_reasoning(form, rules, prompt), calls)), tuple[str, ...]()
    else:
        triggers, rest = writer.behind_opener()
        if not triggers:
            primer = form.primes(prompt)
            if not (heads := writer.heads(primer)):
                return None
            rest = joined(rules.space, writer.turn(primer))
        text = rules.text(rest)
    check("tools", "llguidance", text)
    return CallGrammar(text, triggers, tuple(dict.fromkeys(writer.ignored)), heads)


def after_reasoning(form: Format, prompt: str, answer: str, *, special: Special) -> str:
    """Return the grammar of an answer that may reason, or must if the prompt says so, before it is held."""
    rules = Rules(special)
    before, content = _reasoning(form, rules, prompt), _content(form, rules, prompt, answer)
    if not before and form.padded:
        before = rules.space
    return rules.text(joined(before, content)) if before or form.content_start else answer


def _reasoning(form: Format, rules: Rules, prompt: str) -> str:
    """Return the reasoning that an answer begins with, with the white space behind it."""
    if form.calls.kind is Kind.CHANNELS:
        head = rules.marker(f"{form.calls.start}analysis{form.calls.name_end}")
        thoughts = rules.until(ANY_TEXT, "<|end|>")
        return f"({joined(head, thoughts, rules.marker('<|start|>assistant'))})*"
    if not form.reasoning_end:
        return ""
    speaker = optional(rules.marker(_recipients(form)[0]))
    end = joined(rules.until(ANY_TEXT, form.reasoning_end), speaker, rules.space)
    if form.opens_reasoning(prompt):
        return end
    if form.follows_reasoning(prompt):
        return rules.space
    starts = [form.reasoning_start] if form.reasoning_start else []
    choices = [joined(rules.space, rules.marker(start), end) for start in starts]
    choices.append(joined(rules.space, rules.marker(form.reasoning_end), rules.space))  # nothing to reason
    return optional(one_of(choices))


def _recipients(form: Format) -> tuple[str, str]:
    """Return what begins another message of a turn and what names its recipient, where calls have one."""
    recipient = next((marker for marker in form.noise if "{name}" in marker), "")
    others = [marker for marker in form.noise if marker not in (recipient, form.reasoning_end)]
    return ("".join(others), recipient) if recipient else ("", "")


def _content(form: Format, rules: Rules, prompt: str, answer: str) -> str:
    """Return an answer in words, with what stands around it."""
    content = rules.grammar(answer)
    if form.calls.kind is Kind.CHANNELS:
        kind = optional(joined('" "', rules.marker("<|constrain|>json")))
        return joined(
            rules.marker(form.calls.start + "final"), kind, rules.marker(form.calls.name_end), content
        )
    start = form.content_start.removeprefix(form.primes(prompt))
    if not start:
        return content
    marked = joined(rules.marker(start), content, optional(rules.marker(form.content_end)))
    return one_of([joined(rules.space, marked), content])


class _Calls:
    """Writes the calls of one turn."""

    def __init__(
        self,
        form: Format,
        rules: Rules,
        check: GrammarCheck,
        functions: Sequence[tuple[int, Mapping[str, Any]]],
        *,
        several: bool,
    ) -> None:
        self._form, self._calls, self._rules, self._check = form, form.calls, rules, check
        self._functions, self._several = functions, several
        self.ignored: list[Path] = []
        self._schemas: dict[tuple[str, bool], AcceptedGrammar] = {}

    def turn(self, primer: str) -> str:
        """Return all calls of a turn; `primer` is what the prompt has of the first marker."""
        form, rules = self._form, self._rules
        if self._calls.kind is Kind.CHANNELS:
            return self._messages()
        opener, _, rest = self._parts()
        words = ""
        if form.content_start and form.content_end:
            empty = joined(rules.marker(form.content_start), rules.marker(form.content_end), rules.space)
            words = optional(empty)
        return joined(words, self._recipient(), rules.marker(opener.removeprefix(primer)), rest)

    def behind_opener(self) -> tuple[tuple[str, ...], str]:
        """Return texts that open calls and what stands behind them; no text where there is none."""
        if self._calls.kind is Kind.CHANNELS:
            return _ADDRESSED, self._addressed(_HEADS)
        _, trigger, rest = self._parts()
        return ((trigger,) if trigger else ()), rest

    def heads(self, primer: str) -> tuple[str, ...]:
        """Return how answers that are calls begin, without white space, where calls have no marker.

        None where reasoning may come before them.
        """
        calls, form = self._calls, self._form
        if form.reasoning_end:
            return ()
        names = [function["name"] for _, function in self._functions]
        if calls.kind is Kind.JSON and calls.name_field and not calls.start:
            field = json.dumps(calls.name_field)
            return tuple(f"{{{field}:{json.dumps(name)}" for name in names)
        if calls.kind is Kind.TAG_JSON and calls.known_only and not any(calls.around_name()):
            start = calls.start.removeprefix(primer)
            return tuple("".join(f"{start}{name}{calls.name_end}{{".split()) for name in names)
        return ()

    # Harmony: a message with a header

    def _messages(self) -> str:
        """Return a message to a tool, in each of the two ways to write its header."""
        to = "to=functions."
        heads = (
            literal(f" {to}"),
            joined(self._rules.marker(self._calls.start), literal(f"commentary {to}")),
        )
        return one_of(
            [joined(head, self._addressed((tail,))) for head, tail in zip(heads, _HEADS, strict=True)]
        )

    def _addressed(self, heads: Sequence[str]) -> str:
        """Return the name of a tool and the rest of the message to it, with one of these behind the name."""
        rules, calls = self._rules, self._calls
        header = rules.rule(
            one_of([rules.marker(way + calls.name_end) for head in heads for way in _ways(head)])
        )
        tails = [
            joined(literal(function["name"]), header, self._arguments(i, function))
            for i, function in self._functions
        ]
        return joined(one_of(tails), rules.marker(calls.end))

    # All other formats

    def _recipient(self) -> str:
        """Return what says to whom a call is sent, where that stands before it."""
        _, recipient = _recipients(self._form)
        if not recipient:
            return ""
        names = (function["name"] for _, function in self._functions)
        return one_of([self._rules.marker(recipient.replace("{name}", name)) for name in names])

    def _parts(self) -> tuple[str, str, str]:
        """Return the first marker, the part of it that tells a call, and what stands behind it."""
        calls, rules = self._calls, self._rules
        space, start = rules.space, rules.marker(calls.start)
        call = rules.rule(self._call())
        end = rules.marker(calls.end)
        closing = joined(space, end) if end else ""
        if calls.joined:
            separator = joined(space, '","') if calls.joined == "list" else ""
            inner = joined(call, self._more(joined(separator, call)))
            if calls.joined == "list":
                inner = joined(space, '"["', inner, space, '"]"')
            return calls.start, calls.start, joined(inner, closing)
        if calls.kind is Kind.PYTHON:
            inner = joined(space, '"["', call, self._more(joined('","', space, call)), '"]"')
            return calls.section_start, calls.section_start, joined(inner, rules.marker(calls.section_end))
        if calls.section_start:
            marked_call = joined(space, start, call, closing)
            section_end = rules.marker(calls.section_end)
            last = joined(space, section_end) if section_end else ""
            if to := self._recipient():
                form, section = self._form, rules.marker(calls.section_start)
                between = joined(rules.marker(form.reasoning_end), rules.marker(_recipients(form)[0]))
                again = joined(between, space, to, section, marked_call, last)
                return calls.section_start, calls.section_start, joined(marked_call, last, self._more(again))
            return (
                calls.section_start,
                calls.section_start,
                joined(marked_call, self._more(marked_call), last),
            )
        closed_call = joined(call, closing)
        trigger = "" if calls.known_only else calls.starts[-1]
        return calls.start, trigger, joined(closed_call, self._more(joined(space, start, closed_call)))

    def _more(self, another: str) -> str:
        return f"({another}){{0,{MAX_CALLS - 1}}}" if self._several else ""

    def _call(self) -> str:
        """Return a call without the marker that starts it and the one that ends it."""
        if self._calls.kind is Kind.JSON:
            return self._json_call()
        before, behind = self._calls.around_name()
        tails = []
        for i, function in self._functions:
            tail = joined(literal(function["name"]), *map(self._named, behind))
            end = self._rules.marker(self._calls.name_end)
            tails.append(joined(tail, self._rules.space, end, self._arguments(i, function)))
        return joined(*map(self._named, before), one_of(tails))

    def _named(self, part: str) -> str:
        """Return what stands beside a name: an id, the number of the call, or these very words."""
        fields = {ID: f"/{self._ids}/", NUMBER: "/[0-9]{1,3}/"}
        return self._rules.terminal(fields[part]) if part in fields else self._rules.marker(part)

    @property
    def _ids(self) -> str:
        """The regular expression of ids; Mistral's templates refuse those of other lengths."""
        return "[A-Za-z0-9]{9}" if self._calls.start == "[TOOL_CALLS]" else r"[A-Za-z0-9_.\-]{1,40}"

    def _json_call(self) -> str:
        calls, rules = self._calls, self._rules
        space, ids = rules.space, f'/"{self._ids}"/'
        key_end = joined(space, '":"', space)
        order = calls.fields or (calls.name_field, calls.arguments_field)
        tails = []
        for i, function in self._functions:
            name, arguments = literal(json.dumps(function["name"])), self._arguments(i, function)
            values = {calls.name_field: name, calls.arguments_field: arguments}
            pairs = [
                joined(literal(json.dumps(field)), key_end, values.get(field) or rules.terminal(ids))
                for field in order
            ]
            if not calls.name_field:
                pairs = [joined(name, key_end, arguments)]
            tails.append(f' {space} "," {space} '.join(pairs))
        return joined(space, '"{"', space, one_of(tails), space, '"}"')

    def _arguments(self, i: int, function: Mapping[str, Any]) -> str:
        path: Path = ("tools", i, "function", "parameters")
        strict = function.get("strict") is True
        root = _root(function.get("parameters"))
        checked = self._schema(path, root, strict=strict)
        self.ignored += checked.ignored
        calls, rules = self._calls, self._rules
        if calls.kind in (Kind.JSON, Kind.CHANNELS) or (calls.kind is Kind.TAG_JSON and not calls.quote):
            return joined(rules.space, rules.grammar(checked.grammar.text))

        def json_of(schema: Any) -> str:
            shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
            schema = {**shared, **schema} if isinstance(schema, Mapping) else schema
            return rules.grammar(self._schema(path, schema, strict=strict).grammar.text)

        writer = ArgumentsWriter(calls, rules, json_of, root, i)
        try:
            written = writer.written()
        except TooManyChoicesError:
            problem = f"cannot be used: its choices are more than {MAX_CHOICES}, all told"
            raise InvalidParameterError(path, problem) from None
        if writer.ignored and strict:
            keys = ", ".join(dict.fromkeys(writer.ignored))
            raise InvalidParameterError(
                path, f"cannot be used: calls of this model cannot be constrained to {keys}"
            )
        self.ignored += [(*path, key) for key in writer.ignored]
        return written

    def _schema(self, path: Path, schema: Any, *, strict: bool) -> AcceptedGrammar:
        """Compile a schema, once where nothing of it is ignored: those of most numbers are alike."""
        text = json.dumps(schema)
        if (text, strict) not in self._schemas or self._schemas[text, strict].ignored:
            self._schemas[text, strict] = self._check(path, "json_schema", text, strict=strict)
        return self._schemas[text, strict]


_HEADS = ("<|channel|>commentary", "")
"""Between the name of a tool and the type of the body, for a recipient before the channel and behind it."""
_ADDRESSED = ("<|start|>assistant to=functions.", "<|channel|>commentary to=functions.")
"""What tells that a message goes to a tool; not if it is an answer's first and has the recipient first."""


def _ways(head: str) -> tuple[str, ...]:
    """Return the ways to say that JSON follows, or not to say it."""
    return head, f"{head} json", f"{head} <|constrain|>json"


_NOTES = frozenset({"$comment", "deprecated", "description", "examples", "title"})
"""Keys of a schema that hold answers to nothing; they are most of the text of many."""
_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""Keys whose value has a schema under each name."""
_SCHEMAS = frozenset(
    {"additionalProperties", "allOf", "anyOf", "contains", "else", "if", "items", "not", "oneOf"}
    | {"prefixItems", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
)
"""Keys whose value is a schema or a list of them."""
_COMBINES = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "propertyNames"})


def _root(parameters: Any) -> dict[str, Any]:
    """Return parameters as the schema of an object that has no properties but those it names."""
    if not isinstance(parameters, Mapping):
        return {"type": "object"}
    root = {key: value for key, value in _bare(parameters).items() if value is not None} | {"type": "object"}
    properties, required = root.get("properties"), root.get("required") or []
    if (
        isinstance(properties, Mapping)
        and "additionalProperties" not in root
        and not _COMBINES & root.keys()
        and isinstance(required, list)
        and all(isinstance(key, str) and key in properties for key in required)
    ):
        root["additionalProperties"] = False
    return root


def _bare(schema: Any) -> Any:
    """Return a schema, or a list of them, without what is for readers."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    bare = {key: value for key, value in schema.items() if key not in _NOTES}
    for key, value in bare.items():
        if key in _SCHEMAS:
            bare[key] = _bare(value)
        elif key in _BY_NAME and isinstance(value, Mapping):
            bare[key] = {name: _bare(subschema) for name, subschema in value.items()}
    return bare
