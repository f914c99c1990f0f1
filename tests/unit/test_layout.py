"""Several engines in the settings: who is told what, under which name."""

import warnings

import pytest
import yaml

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import ray.serve  # noqa: F401  its models use pydantic's old ways; nothing of Ray is started

from cobali_ray.actors.app import build
from cobali_ray.actors.layout import gpu_shares, places, require_gpus, served_by, versions
from cobali_ray.errors import ConfigError
from cobali_ray.settings import OF_ALL, PLACES, listed, read_settings

TWO = {
    "n_slots": 8,
    "n_ctx": 1024,
    "engines": {
        "small": {"model": "builtin:tiny", "model_aliases": ["quick"]},
        "big": {"model": "models/Big-Q8.gguf", "n_slots": 2, "replicas": 2, "cores": "0-2"},
    },
}


def test_one_engine_is_the_file_as_it_was():
    (only,) = places(read_settings({"n_slots": 4, "model_aliases": ["other"]}))
    assert (only.engine_id, only.deployment, only.names) == ("0", "engine", ("tiny", "other"))
    assert only.settings.limits.n_slots == 4


def test_each_engine_has_its_own_settings_on_top_of_the_common_ones():
    small, first, second = places(read_settings(TWO))
    assert [place.engine_id for place in (small, first, second)] == ["small", "big-0", "big-1"]
    assert [place.deployment for place in (small, first, second)] == [
        "engine-small", "engine-big-0", "engine-big-1",
    ]  # fmt: skip
    assert (small.names, first.names, second.names) == (("tiny", "quick"), ("Big-Q8",), ("Big-Q8",))
    assert (small.settings.limits.n_slots, first.settings.limits.n_slots) == (8, 2)
    assert (small.settings.llama.n_ctx, first.settings.llama.n_ctx) == (1024, 1024)
    assert (
        small.settings.processes.cores,
        first.settings.processes.cores,
        second.settings.processes.cores,
    ) == (None, "0", "1,2")


def test_those_beyond_the_least_replicas_come_and_go_and_the_others_stay():
    def loads(**own):
        found = [place.settings.processes for place in places(read_settings(own))]
        return [(processes.load, processes.keep_alive_s) for processes in found]

    own = {"replicas": 3, "keep_alive_s": 300, "scale_up_wait_s": 2}
    assert loads(**own, min_replicas=1) == [("eager", None), ("on_demand", 300), ("on_demand", 300)]
    assert {load for load, _ in loads(**own, min_replicas=0)} == {"on_demand"}
    assert loads(replicas=2, keep_alive_s=300) == [("eager", 300)] * 2
    assert {served.scale_up_wait_s for served in served_by(places(read_settings(own)))} == {2}


def test_replicas_need_no_name():
    assert [place.deployment for place in places(read_settings({"replicas": 2}))] == ["engine-0", "engine-1"]


def test_an_engine_may_say_nothing_of_its_own():
    values = yaml.safe_load("engines: {plain: , other: {model_id: other}}")
    assert [place.names for place in places(read_settings(values))] == [("tiny",), ("other",)]


def test_the_environment_wins_over_the_top_of_the_file_and_not_over_an_engine(monkeypatch):
    monkeypatch.setenv("COBALI_N_SLOTS", "3")
    small, big, _ = places(read_settings(TWO))
    assert (small.settings.limits.n_slots, big.settings.limits.n_slots) == (3, 2)


@pytest.mark.parametrize(
    ("engines", "setting", "words"),
    [
        pytest.param({"a": {"n_slot": 4}}, "engines.a.n_slot", "did you mean n_slots?", id="misspelt"),
        pytest.param({"a": {"n_slots": 0}}, "engines.a.n_slots", "got 0", id="too-small"),
        pytest.param({"a": {"kv": "split", "kv_cells": 64}}, "engines.a.kv_cells", "unified", id="together"),
        pytest.param({"a": {"api_keys": ["k"]}}, "engines.a.api_keys", "next to `engines`", id="of-all"),
        pytest.param({"a": {"engines": {}}}, "engines.a.engines", "next to `engines`", id="nested"),
        pytest.param({"a": {}, "b": {}}, "engines.b.model_id", "engines.a", id="one-name-twice"),
        pytest.param(
            {"a": {"model_id": "x"}, "b": {"model_aliases": "x"}}, "engines.b.model_id", "'x'", id="an-alias"
        ),
        pytest.param({"a b": {}}, "engines.a b", "letters", id="no-name"),
        pytest.param(
            {"a": {"cores": "0", "replicas": 2}}, "engines.a.cores", "too few CPUs", id="too-few-cores"
        ),
        pytest.param({"a": {"cores": "3-1"}}, "engines.a.cores", "0-3,8", id="no-cores"),
        pytest.param({"a": {"gpus": "cuda:0"}}, "engines.a.gpus", "0-3,8", id="no-gpus"),
        pytest.param({"a": 4}, "engines", "dict", id="no-settings"),
        pytest.param(["a"], "engines", "dict", id="no-names"),
    ],
)
def test_what_is_wrong_with_an_engine_names_the_engine_and_the_setting(engines, setting, words):
    with pytest.raises(ConfigError) as caught:
        places(read_settings({"engines": engines}))
    assert caught.value.setting == setting
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"), [("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), (" 1 - 2 ", (1, 2)), ("5,5", (5,))]
)
def test_cpus_are_listed_as_linux_does(text, found):
    assert listed(text) == found


def changed(before, after):
    before, after = versions(read_settings(before)), versions(read_settings(after))
    return {name for name in before | after if before.get(name) != after.get(name)}


def test_a_change_concerns_only_whom_it_is_told():
    assert changed(TWO, TWO) == set()
    big = TWO["engines"]["big"] | {"n_slots": 3}
    assert changed(TWO, TWO | {"engines": TWO["engines"] | {"big": big}}) == {"engine-big-0", "engine-big-1"}
    assert changed(TWO, TWO | {"n_slots": 9}) == {"engine-small"}, "big has its own"
    one, two = ({"replicas": 3, "min_replicas": n} for n in (1, 2))
    assert changed(one, two) == {"engine-1", "ingress"}
    assert changed(TWO, TWO | {"api_keys": ["k"]}) == {"ingress"}, "secrets count, too"
    named = TWO["engines"] | {"small": {"model_id": "small"}}
    assert changed(TWO, TWO | {"engines": named}) == {"engine-small", "ingress"}
    for of_all in ({"log_level": "debug"}, {"otlp_endpoint": "http://127.0.0.1:1"}):
        assert changed(TWO, TWO | of_all) == set(versions(read_settings(TWO)))


def test_no_engine_is_told_the_keys():
    settings = read_settings(TWO | {"api_keys": ["secret"]})
    assert all(place.settings.api.api_keys == () for place in places(settings))
    assert "secret" not in str(versions(settings))
    assert PLACES.keys() >= OF_ALL


@pytest.mark.parametrize(
    ("gpus", "replicas", "each"),
    [
        pytest.param(None, 2, [None, None], id="as-ray-says"),
        pytest.param(1, 1, ["1"], id="a-number"),
        pytest.param("0-3", 2, ["0,1", "2,3"], id="equal-parts"),
        pytest.param("0-4", 2, ["0,1", "2,3,4"], id="the-rest-is-the-last-ones"),
        pytest.param("0,2", 3, ["0", "2", "0"], id="in-turns"),
    ],
)
def test_replicas_share_the_gpus_that_an_engine_is_told(gpus, replicas, each):
    found = places(read_settings({"gpus": gpus, "replicas": replicas}))
    assert [place.settings.processes.gpus for place in found] == each


TWO_DEVICES = {"devices": "CUDA0,CUDA1"}


def shares_of(engines, n_gpus):
    named = {name: own | {"model_id": name} for name, own in engines.items()}
    return gpu_shares(places(read_settings({"engines": named})), n_gpus)


@pytest.mark.parametrize(
    ("engines", "n_gpus", "shares"),
    [
        pytest.param({"a": {}}, 0, [0], id="none-there"),
        pytest.param({"a": {}}, 1, [1], id="one-each"),
        pytest.param({"a": {}}, 8, [1], id="one-model-on-one-gpu"),
        pytest.param({"a": {}, "b": {"n_gpu_layers": 0}}, 1, [1, 0], id="one-on-the-cpu"),
        pytest.param({"a": {}, "b": {}, "c": {}}, 2, [0.5, 0.5, 0.5], id="two-of-three-on-one"),
        pytest.param({"a": {"gpu_share": 0.25}, "b": {}}, 2, [0.25, 1], id="as-told"),
        pytest.param({"a": TWO_DEVICES, "b": {}, "c": {}}, 3, [2, 0.5, 0.5], id="the-others-share-the-rest"),
        pytest.param({"a": TWO_DEVICES, "b": {}}, 4, [2, 1], id="one-of-several-devices"),
        pytest.param({"a": TWO_DEVICES | {"gpu_share": 1}, "b": {}}, 2, [1, 1], id="several-as-told"),
    ],
)
def test_gpus_are_shared_so_that_all_engines_find_a_place(engines, n_gpus, shares):
    assert list(shares_of(engines, n_gpus).values()) == shares
    require_gpus(shares_of(engines, n_gpus), n_gpus)


@pytest.mark.parametrize(
    ("engines", "n_gpus"),
    [
        pytest.param({"a": TWO_DEVICES, "b": {}}, 2, id="nothing-is-left"),
        pytest.param({"a": TWO_DEVICES, "b": TWO_DEVICES}, 3, id="two-of-several-devices"),
        pytest.param({"a": {"gpu_share": 1}, "b": {}}, 1, id="all-is-told"),
    ],
)
def test_engines_that_would_wait_for_gpus_for_ever_are_refused_by_the_setting(engines, n_gpus):
    with pytest.raises(ConfigError, match=r"^gpu_share: .* for engine a, .* for engine b"):
        require_gpus(shares_of(engines, n_gpus), n_gpus)


def test_a_misspelt_key_of_the_config_is_named_by_what_serve_calls():
    with pytest.raises(ConfigError, match="n_slotz"):
        build({"n_slotz": 4})
