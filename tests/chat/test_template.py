"""ChatTemplate: what templates are given, what they may do, how a prompt ends."""

import time
from datetime import UTC, datetime

import pytest
from comparison import calls, result, says

from cobali_ray.chat.template import CHATML, ChatTemplate
from cobali_ray.errors import InvalidParameterError

USER = says("user", "hi")
LEAP_DAY = datetime(2024, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        pytest.param("{{ tools is none }}", "True", id="asks"),
        pytest.param("{{ tools is defined }}", "True", id="is-defined"),
        pytest.param("{% for tool in tools %}x{% endfor %}none", "none", id="walks"),
        pytest.param(
            "{% if tools is not none %}offered{% endif %}plain", "plain", id="takes-a-list-for-tools"
        ),
    ],
)
def test_no_tools_are_none_or_an_empty_list_where_none_raises(source, prompt):
    template = ChatTemplate(source)
    assert template.render([USER]) == template.render([USER], tools=[]) == prompt


HEADER = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "knows", "prompt"),
    [
        pytest.param(HEADER, False, "[system]x[user]hi", id="any-name"),
        pytest.param(
            HEADER.replace("m.role", "m.role | upper"), False, "[SYSTEM]x[USER]hi", id="any-name-upper"
        ),
        pytest.param(
            HEADER.replace("m.role", "'core' if m.role == 'developer' else m.role"),
            True,
            "[core]x[user]hi",
            id="marker-of-its-own",
        ),
        pytest.param(
            HEADER.replace("m.role", "'system' if m.role in ('system', 'developer') else 'user'"),
            True,
            "[system]x[user]hi",
            id="as-system",
        ),
        pytest.param(
            "{% for m in messages if m.role in ('user', 'system') %}{{ m.content }}{% endfor %}",
            False,
            "xhi",
            id="drops-it",
        ),
        pytest.param(
            "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('no') }}{% endif %}"
            "{{ m.content }}{% endfor %}",
            False,
            "xhi",
            id="refuses-it",
        ),
        pytest.param(
            HEADER.replace("m.role", "m.role if m.role in ('user', 'system') else 'assistant'"),
            False,
            "[system]x[user]hi",
            id="takes-it-for-the-assistant",
        ),
        pytest.param(
            "{% for m in messages %}{% if m.role not in ('user', 'developer') %}{{ raise_exception('no') }}"
            "{% endif %}{{ m.content }}{% endfor %}",
            True,
            "xhi",
            id="refuses-all-others",
        ),
    ],
)
def test_a_developer_is_a_system_where_the_template_has_no_place_for_it(source, knows, prompt):
    template = ChatTemplate(source)
    assert template.knows_developer is knows
    assert template.render([says("developer", "x"), USER]) == prompt


TRIMS = CHATML.replace("message['content']", "message['content'] | trim")
PARTS = CHATML.replace("message['content']", "message['content'] | map(attribute='text') | join('|')")


@pytest.mark.parametrize(
    ("source", "content", "ending"),
    [
        pytest.param(CHATML, "Once upon ", "assistant\nOnce upon ", id="space-is-kept"),
        pytest.param(CHATML, "", "assistant\n", id="empty"),
        pytest.param(CHATML, "hi", "assistant\nhi", id="said-before"),
        pytest.param(TRIMS, " Once upon \n", "assistant\nOnce upon", id="space-is-trimmed"),
        pytest.param(TRIMS, "", "assistant", id="empty-trimmed"),
        pytest.param(
            "{% if add_generation_prompt %}>{% endif %}" + CHATML, "a", "\na", id="no-generation-prompt"
        ),
        pytest.param(
            PARTS, [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}], "\na|b ", id="parts"
        ),
    ],
)
def test_an_open_end_is_the_last_content(source, content, ending):
    user = [{"type": "text", "text": "hi"}] if source is PARTS else "hi"
    messages = [says("user", user), says("assistant", content)]
    prompt = ChatTemplate(source).render(messages, continue_final_message=True)
    assert prompt.endswith(ending)
    closed = ChatTemplate(source).render(messages, add_generation_prompt=False)
    assert closed.startswith(prompt)
    assert len(prompt) < len(closed)


@pytest.mark.parametrize(
    ("source", "messages", "reason"),
    [
        pytest.param(CHATML, [], "no text", id="nothing"),
        pytest.param(CHATML, [says("assistant", None)], "no text", id="none"),
        pytest.param(CHATML, [says("assistant", [{"type": "image"}])], "no text", id="no-text"),
        pytest.param("{{ messages[0].content }}", [USER, says("assistant", "x")], "changes", id="dropped"),
        pytest.param("{{ messages[-1].content | upper }}", [says("assistant", "x")], "changes", id="changed"),
        pytest.param(
            "{{ messages[-1].content.split('</think>')[-1] }}",
            [says("assistant", "a</think>b")],
            "changes",
            id="half-dropped",
        ),
    ],
)
def test_an_end_that_cannot_be_left_open_is_refused(source, messages, reason):
    with pytest.raises(InvalidParameterError, match=reason) as caught:
        ChatTemplate(source).render(messages, continue_final_message=True)
    assert caught.value.param == "messages"


def test_the_generation_prompt_is_there_unless_unwanted():
    opening = "<|im_start|>assistant\n"
    closed = ChatTemplate(CHATML).render([USER], add_generation_prompt=False)
    assert ChatTemplate(CHATML).render([USER]) == closed + opening
    assert opening not in closed


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        pytest.param("{{ bos_token }}-{{ eos_token }}", "<s>-</s>", id="token-names"),
        pytest.param("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024", id="clock"),
        pytest.param("{{ {'b': '<ł & \"', 'a': 1} | tojson }}", '{"b": "<ł & \\"", "a": 1}', id="json"),
        pytest.param(
            "{{ {'b': 'ł', 'a': 1} | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}",
            '{"a":1,"b":"\\u0142"}',
            id="json-flags",
        ),
        pytest.param("{{ [1] | tojson(indent=1) }}", "[\n 1\n]", id="json-indent"),
        pytest.param("{% generation %}a{% endgeneration %}b", "ab", id="generation"),
        pytest.param(
            "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "01",
            id="break",
        ),
        pytest.param("  {% if true %}\na\n  {% endif %}\nb", "a\nb", id="blocks-leave-no-lines"),
        pytest.param("{{ mode }} {{ absent is defined }}", "deep False", id="variables"),
        pytest.param("{{ documents[0].title }}", "t", id="documents"),
    ],
)
def test_what_templates_find(source, prompt):
    template = ChatTemplate(source, bos="<s>", eos="</s>", clock=lambda: LEAP_DAY)
    assert template.render([USER], mode="deep", documents=[{"title": "t"}]) == prompt


@pytest.mark.parametrize(
    ("content", "param"), [("hi", "tools"), ("", "messages")], ids=["takes-them-without", "refuses-both"]
)
def test_a_template_that_refuses_tools_says_so(content, param):
    source = (
        "{% if tools %}{{ raise_exception('no tools, please') }}{% endif %}"
        "{% for message in messages %}{{ message.content or raise_exception('empty') }}{% endfor %}"
    )
    tools = [{"type": "function", "function": {"name": "now"}}]
    with pytest.raises(InvalidParameterError, match=f"refuses the {param}: no tools, please") as caught:
        ChatTemplate(source).render([{"role": "user", "content": content}], tools=tools)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param("{{ raise_exception('roles must alternate') }}", "roles must alternate", id="refuses"),
        pytest.param("{{ messages[7].content }}", "no element 7", id="fails"),
        pytest.param("{{ 1 / 0 }}", "division by zero", id="divides"),
        pytest.param("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion", id="recurses"),
        pytest.param("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe", id="reaches-out"),
        pytest.param("{% for %}", "cannot be read", id="unreadable"),
    ],
)
def test_a_template_that_fails_refuses_the_messages(source, reason):
    template = ChatTemplate(source)
    assert bool(template.unreadable) == (reason == "cannot be read")
    with pytest.raises(InvalidParameterError, match=reason) as caught:
        template.render([USER])
    assert caught.value.param == "messages"


def test_a_template_may_change_its_messages_and_nobody_elses():
    # The loop makes None raise, so that the list for no tools can be changed, too.
    source = (
        "{% for tool in tools %}{% endfor %}{{ tools | length }}{{ messages[0].role }}{{ messages | length }}"
        "{% set _ = tools.append(1) %}{% set _ = messages[0].update(role='x') %}"
        "{% set _ = messages.append(1) %}"
    )
    messages = [says("user", "hi")]
    template = ChatTemplate(source)
    assert template.render(messages) == template.render(messages) == "0user1"
    assert messages == [says("user", "hi")]
    picky = "{% if messages[0].role == 'x' %}{{ 1 / 0 }}{% endif %}{% for tool in tools %}{% endfor %}y"
    assert ChatTemplate(picky).render(messages) == "y", "nor what other templates are tried with"


@pytest.mark.parametrize("arguments", [{"city": "Łódź"}, '{"city": "Łódź"}'], ids=["dict", "text"])
@pytest.mark.parametrize(
    ("shown", "prompt"),
    [
        pytest.param("given | tojson", '{"city": "Łódź"}', id="json"),
        pytest.param("given.items() | list", "[('city', 'Łódź')]", id="dict"),
        pytest.param("'' + given", '{"city": "Łódź"}', id="wants-text"),
    ],
)
def test_arguments_come_as_the_template_can_use_them(arguments, shown, prompt):
    source = (
        "{% for m in messages if m.tool_calls %}{% set given = m.tool_calls[0].function.arguments %}"
        "{{ shown }}{% endfor %}"
    ).replace("shown", shown)
    messages = [USER, says("assistant", "", tool_calls=calls(("f", arguments))), result(0, "f", "grey")]
    assert ChatTemplate(source).render(messages) == prompt


@pytest.mark.parametrize(
    "arguments",
    ["{half", '"word"', "[" * 5000, '{"a": ' + "1" * 5000 + "}"],
    ids=["half", "word", "deep", "long"],
)
def test_arguments_that_are_no_json_object_are_left_alone(arguments):
    template = ChatTemplate("{{ messages[-1].tool_calls[0].function.arguments }}")
    assert template.render([says("assistant", "", tool_calls=calls(("f", arguments)))]) == arguments


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_both_names(name):
    template = ChatTemplate("{{ messages[0].reasoning_content }} {{ messages[0].thinking }}")
    assert template.render([says("assistant", "x", **{name: "why"})]) == "why why"


LONG = [{"role": "user", "content": str(i)} for i in range(400)]
ENDLESS = [
    pytest.param("{% for a in messages %}" * 4 + "x" + "{% endfor %}" * 4, "more than 0.1 s", id="loops"),
    pytest.param(
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
        "{{ f(messages|length // 10) }}",
        "more than 0.1 s",
        id="macro",
    ),
    pytest.param(
        "{% set ns = namespace(s='x') %}{% for m in messages %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "(67,108,864 characters|more than 0.1 s)",  # whichever a machine comes to first
        id="doubled-text",
    ),
    pytest.param(
        "{% set ns = namespace(s='x') %}{% for m in messages %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "(67,108,864 characters|more than 0.1 s)",  # whichever a machine comes to first
        id="added-text",
    ),
]


@pytest.mark.parametrize(("source", "says"), ENDLESS)
def test_a_template_that_would_go_on_for_ever_is_refused(source, says):
    """For the number of messages that a client sent; a few are rendered."""
    template = ChatTemplate(source, spent_s=time.thread_time, most_s=0.1)
    template.render(LONG[:3])
    with pytest.raises(InvalidParameterError, match=says) as caught:
        template.render(LONG)
    assert caught.value.param == "messages"
    template.render(LONG[:3])


def test_loops_know_their_place_all_the_same():
    source = (
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}"
        "{{ loop.nextitem is defined }} {% else %}none{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.render(LONG[:2]) == "1/2FalseTrue 2/2TrueFalse "
    assert template.render([{"role": "system", "content": "x"}]) == "none"
