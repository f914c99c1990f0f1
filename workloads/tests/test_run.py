"""`cobali run`: what it prints and returns, on the scripted model."""

import io

import pytest
from rich.console import Console

from cobali_workloads.run import RunOptions, run_command


@pytest.fixture
def run(tmp_path):
    def run(text, **options):
        prompts = tmp_path / "prompts.txt"
        prompts.write_text(text, encoding="utf-8")
        console = Console(file=io.StringIO(), width=80)
        sizes = {"max_slots": 2, "ctx": 256, "prefill_chunk": 32, "max_new": 16} | options
        settings = {"model": "builtin:scripted"} | sizes.pop("settings", {})
        told = RunOptions(prompts=prompts, sequential=False, ignore_eos=True, settings=settings, **sizes)
        return run_command(told, console), console.file.getvalue()

    return run


def test_every_column_has_its_whole_name_on_a_terminal_of_80_columns(run):
    _, shown = run("one\n\ntwo", baseline=True)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert all(name in shown for name in ("wall s", "tok/s", "speed-up", "TTFT", "sequential"))


def test_computed_tokens_are_those_of_all_passes(run):
    found, shown = run("abcd\n\nabcde")
    told = found["runs"]["continuous"]
    # The last token of an answer is drawn and not computed.
    assert told["n_computed"] == told["n_prompt"] + told["n_output"] - 2
    assert f"{told['n_computed']} tokens computed, 0 preemptions" in shown


def test_what_preemption_has_computed_again_counts_as_computed(run):
    cells = {"kv": "unified", "kv_cells": 64, "host_cache_mib": 0}
    found, shown = run("a" * 30 + "\n\n" + "b" * 30, settings=cells)
    told = found["runs"]["continuous"]
    assert told["n_preempted"] > 0
    assert told["n_computed"] > told["n_prompt"] + told["n_output"] - 2
    assert f"{told['n_preempted']} preemptions" in shown
