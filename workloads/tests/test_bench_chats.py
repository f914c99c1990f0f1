import json
from array import array
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cobali_ray.settings import read_settings
from cobali_workloads.commands import app
from cobali_workloads.inside import chats
from cobali_workloads.inside.chats import hybrid, run_chats
from cobali_workloads.inside.oracle import Visit, best_hits, slot_hits


def visit(prompt, answer=""):
    return Visit(len(prompt), array("i", map(ord, prompt + answer)))


@pytest.mark.parametrize(
    ("n_slots", "hits"),
    [
        pytest.param(1, [0, 0, 0, 0, 0], id="one-slot-holds-who-came-last"),
        pytest.param(2, [0, 0, 0, 2, 0], id="who-is-needed-last-gives-way"),
        pytest.param(3, [0, 0, 0, 2, 2], id="a-slot-for-each"),
    ],
)
def test_slot_hits(n_slots, hits):
    visits = [visit("aa"), visit("bb"), visit("cc"), visit("bbx"), visit("aax")]
    assert slot_hits(visits, n_slots) == hits


def by_trying_everything(visits, n_cells, held=frozenset()):
    """Return the most hits in all, over every choice of what to keep between two visits."""
    if not visits:
        return 0
    first, *rest = visits
    path = [tuple(first.tokens[: i + 1]) for i in range(len(first.tokens))]
    n_hits = next((i for i, node in enumerate(path) if node not in held), len(path))
    others = held - set(path)
    n_kept = min(max(n_cells - len(path), 0), len(others))
    choices = (held_on.union(path) for held_on in map(frozenset, combinations(others, n_kept)))
    return min(n_hits, first.n_prompt - 1) + max(by_trying_everything(rest, n_cells, c) for c in choices)


texts = st.text("ab", min_size=1, max_size=4)


@given(st.lists(st.builds(visit, texts, st.text("ab", max_size=2)), max_size=5), st.integers(2, 9))
def test_no_choice_of_what_to_keep_hits_more(visits, n_cells):
    assert sum(best_hits(visits, n_cells)) == by_trying_everything(visits, n_cells)
    assert sum(best_hits(visits)) == by_trying_everything(visits, 1000)


@pytest.fixture(autouse=True)
def short_answers(monkeypatch):
    """What is reused is of prompts; answers only take time."""
    monkeypatch.setattr(chats, "N_ANSWER", (8, 64))


def scene(n_people, n_system=0, **settings):
    return run_chats(read_settings({"model": "builtin:scripted:0", **settings}), n_people, n_system, seed=1)


def test_one_person_alone_finds_all_that_was_said():
    alone = scene(1)
    assert alone.cached == pytest.approx(alone.best(alone.n_cells), abs=0.01)
    assert [result.turn for result in alone.turns] == list(range(len(alone.turns)))


def test_what_was_computed_begins_the_next_prompt():
    first, second, *_ = scene(1, n_system=40).turns
    tokens = first.visit.tokens
    assert len(tokens) == first.visit.n_prompt + first.stats.n_output - 1
    assert second.visit.tokens[: len(tokens)] == tokens


def test_nobody_hits_more_than_the_perfect_cache():
    crowd = scene(5, 300, kv_cells=4096)
    assert crowd.cached <= crowd.best(crowd.n_cells) <= crowd.best(None)


def test_host_memory_holds_what_slots_cannot():
    none, some, crowd = (scene(6, n_slots=2, host_cache_mib=mib) for mib in (0, 2, 64))
    assert none.cached < 0.5 * some.cached < 0.9 * crowd.cached
    assert crowd.cached >= 0.95 * crowd.best(crowd.n_cells)


def test_a_hybrid_holds_nearly_what_a_plain_model_does():
    settings = {"model": "builtin:scripted:0", "n_slots": 2, "n_ctx": 4096, "host_cache_mib": 16}
    plain = run_chats(read_settings(settings), 4, 300, seed=1)
    shared = read_settings(settings | {"host_cache_mib": 4, "state_cache_mib": 12})
    assert run_chats(shared, 4, 300, seed=1, open_model=hybrid).cached >= 0.95 * plain.cached
    none = read_settings(settings | {"state_cache_mib": 0})
    assert run_chats(none, 4, 300, seed=1, open_model=hybrid).cached < 0.6 * plain.cached


def test_a_scene_without_prefix_reuse_hits_nothing():
    assert scene(2, min_prefix=0).cached == 0


def test_the_command(tmp_path):
    options = [
        "--people", "1", "--system", "0,50", "--cells", "4096", "--slots", "4", "--out", str(tmp_path),
    ]  # fmt: skip
    result = CliRunner().invoke(app, ["chats", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "chats.json").read_text())
    assert [row[:3] for row in report["tables"][0]["rows"]] == [
        ["1", system, "4096"] for system in ("0", "50")
    ]
    assert (tmp_path / "chats-4096-cells.png").stat().st_size
