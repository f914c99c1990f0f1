import json
from array import array

import pytest
from typer.testing import CliRunner

from cobali_ray.errors import ConfigError
from cobali_workloads.commands import app
from cobali_workloads.inside.keep import RULES, CacheTrace, Tree, Whole, generated, play, read_hashes
from cobali_workloads.inside.oracle import Visit


def visit(prompt, answer=""):
    return Visit(len(prompt), array("i", map(ord, prompt + answer)))


@pytest.mark.parametrize(
    ("visits", "n_cells", "hits"),
    [
        pytest.param([visit("abc", "d"), visit("abcdx")], 9, [0, 4], id="an-answer-is-kept"),
        pytest.param([visit("abc"), visit("abc")], 9, [0, 2], id="the-last-token-gives-the-logits"),
        pytest.param([visit("abcd"), visit("xyzu"), visit("abcd")], 7, [0, 0, 0], id="the-oldest-saved-goes"),
        pytest.param([visit("abcdefgh"), visit("abx")], 99, [0, 2], id="a-quarter-is-enough"),
        pytest.param([visit("abcdefghi"), visit("abx")], 99, [0, 0], id="less-is-not-looked-at"),
        pytest.param(
            [visit("abcd", "e"), visit("abxy"), visit("abcde")], 99, [0, 2, 2], id="a-hit-takes-the-entry-out"
        ),
        pytest.param([visit("abcdef"), visit("abc")], 4, [0, 0], id="what-is-too-long-is-not-kept"),
    ],
)
def test_llama_servers_rule(visits, n_cells, hits):
    rule = Whole(n_cells, 1)
    assert [rule.ask(one) for one in visits] == hits


@pytest.mark.parametrize("hours", [pytest.param(2.0, marks=pytest.mark.thorough), 0.5])
def test_seeded_hours_stay_within_the_bound(hours):
    trace = generated(3600 * hours, seed=0)
    assert generated(300, seed=0) == generated(300, seed=0) != generated(300, seed=1)
    n_cells = trace.n_distinct // 100
    rule, n_asked = Tree(n_cells, trace.block), 0
    for one in trace.visits:
        rule.ask(one)
        n_asked += 1
        assert rule.n_used <= n_cells
        if n_asked % 500 == 0:
            assert rule.tier.problems() == []
    assert n_asked > 2000 * hours
    assert rule.n_used > 0.99 * n_cells


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_less_is_left_to_compute_than_by_llama_servers_rule(share):
    trace = generated(1200, seed=1)
    n_cells = int(share * trace.n_distinct)
    ours, whole = (play(trace, rule(n_cells, trace.block), n_cells) for rule in RULES.values())
    assert ours.computed <= 0.98 * whole.computed
    assert max(ours.fullest, whole.fullest) <= 1


def test_a_trace_of_hashes():
    trace = read_hashes("x", '{"hash_ids": [0, 1, 2], "output_length": 9}\n\n{"hash_ids": [0, 1, 2, 3]}\n')
    assert (trace.n_distinct, trace.tokens_each) == (4, 512)
    assert play(trace, Tree(9, trace.block), 9).cached == 3 / 7
    for text in ("", "{}", '{"hash_ids": "x"}', "no json"):
        with pytest.raises(ConfigError):
            read_hashes("x", text)


def test_deep_tokens_cost_more():
    deep = CacheTrace("x", [visit("ab"), visit("ab")], block=1, tokens_each=4096)
    assert 0.5 < play(deep, Tree(9, 1), 9).computed < 1 - 0.25 * 0.5


def test_the_command(tmp_path):
    command = ["keep", "--minutes", "5", "--room", "0.02,0.2", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "keep.json").read_text())
    assert [row[0] for row in report["tables"][0]["rows"]] == ["0.02", "0.2"]
    with pytest.raises(ConfigError, match="--room"):
        CliRunner().invoke(app, [*command[:4], "2"], catch_exceptions=False)
