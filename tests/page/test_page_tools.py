"""Tools that the page offers: what they compute, and what a request says of them."""

import json

import pytest

pytest.importorskip("playwright")

RUN = "({ runTool }, [name, args]) => runTool(name, args)"
OWN = {
    "name": "find_book",
    "description": "Look up a book",
    "parameters": {"type": "object", "properties": {}},
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        pytest.param("12 * 7", "84", id="product"),
        pytest.param("2 + 3 * 4 - 6 / 2", "11", id="order"),
        pytest.param("-2^2 + 2^3^2", "508", id="powers-bind-to-the-right-and-before-the-sign"),
        pytest.param("(1 + 2) \u00d7 3 \u00f7 9 \u2212 1", "0", id="signs-as-people-write-them"),
        pytest.param("0.1 + 0.2", "0.3", id="no-dust"),
        pytest.param("sqrt(16) + max(1, 2, 3) % 2 + round(pi)", "8", id="functions"),
        pytest.param("1e3 ** -1", "0.001", id="exponents"),
    ],
)
def test_a_calculation_is_right(of, expression, value):
    assert of("request/toolbox.js", RUN, ["calculate", json.dumps({"expression": expression})]) == {
        "content": value
    }


@pytest.mark.parametrize(
    ("args", "told"),
    [
        pytest.param('{"expression": "alert(1)"}', '"alert" is not known', id="no-code"),
        pytest.param('{"expression": "constructor"}', '"constructor" is not known', id="no-object"),
        pytest.param('{"expression": "1 / 0"}', "not a finite number", id="by-zero"),
        pytest.param('{"expression": "2 +"}', "ends too early", id="cut"),
        pytest.param('{"expression": "(1"}', 'expected ")" at the end', id="bracket"),
        pytest.param('{"expression": "1; 2"}', '";" is out of place', id="sign"),
        pytest.param(json.dumps({"expression": "(" * 900}), "nested too deeply", id="deep"),
        pytest.param(json.dumps({"expression": "-" * 900 + "1"}), "nested too deeply", id="signs"),
        pytest.param("{}", '"undefined" is not known', id="no-argument"),
        pytest.param('{"expr', "not valid JSON", id="broken"),
        pytest.param("[]", "not a JSON object", id="list"),
    ],
)
def test_what_cannot_be_calculated_is_told(of, args, told):
    result = of("request/toolbox.js", RUN, ["calculate", args])
    assert set(result) == {"error"}
    assert told in result["error"]


def test_the_other_tools_answer_and_unknown_ones_are_left_to_a_person(of):
    weather = of("request/toolbox.js", RUN, ["get_weather", '{"city": "Oslo"}'])
    assert weather == of("request/toolbox.js", RUN, ["get_weather", '{"city": "Oslo"}'])
    assert weather["content"].endswith(" in Oslo")
    assert "UTC" in of("request/toolbox.js", RUN, ["get_time", '{"time_zone": "UTC"}'])["content"]
    assert "failed" in of("request/toolbox.js", RUN, ["get_time", '{"time_zone": "Nowhere/None"}'])["error"]
    assert of("request/toolbox.js", RUN, ["find_book", "{}"]) is None


def test_a_request_has_the_tools_that_were_chosen(of):
    ask = "({ definitionsOf }, settings) => definitionsOf(settings)"
    assert of("request/toolbox.js", ask, {}) == []
    settings = {"tools": {"offered": ["calculate"], "own": json.dumps(OWN)}}
    first, second = of("request/toolbox.js", ask, settings)
    assert first["function"]["name"] == "calculate"
    assert first["function"]["parameters"]["required"] == ["expression"]
    assert second == {"type": "function", "function": OWN}
    settings["tools"]["own"] = json.dumps([second, second | {"function": {"name": "other"}}])
    assert [tool["function"]["name"] for tool in of("request/toolbox.js", ask, settings)] == [
        "calculate", "find_book", "other",
    ]  # fmt: skip
    settings["tools"]["own"] = "{"
    assert len(of("request/toolbox.js", ask, settings)) == 1


@pytest.mark.parametrize(
    ("own", "fault"),
    [
        pytest.param("{", "Not valid JSON", id="broken"),
        pytest.param("3", "The tool is not a JSON object", id="number"),
        pytest.param('[{"name": "a"}, {}]', 'Tool 2 has no "name"', id="nameless"),
        pytest.param('{"name": "a b"}', 'letters, digits, "_" and "-"', id="name"),
        pytest.param('{"name": "a", "parameters": {"type": "string"}}', '"type": "object"', id="schema"),
        pytest.param('{"name": "a", "description": 3}', "is not text", id="description"),
        pytest.param('[{"name": "a"}, {"name": "a"}]', 'two tools named "a"', id="twice"),
        pytest.param('{"name": "get_weather"}', "demonstration tool", id="taken"),
        pytest.param(json.dumps([{"name": f"t{i}"} for i in range(65)]), "at most 64 tools", id="many"),
        pytest.param(" " * 64_001 + "{}", "at most 64,000 characters", id="long"),
    ],
)
def test_what_is_wrong_with_own_tools_is_told(of, own, fault):
    told = of("request/toolbox.js", "({ ownTools }, text) => ownTools(text)", own)
    assert told["tools"] == []
    assert fault in told["fault"]
