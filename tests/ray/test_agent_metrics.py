"""Ray's own boards get their series: what its metrics agent exports after a request.

The first file of the folder, so that no engine was killed yet: the agent goes on telling of dead workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import pytest
import ray
from conftest import until
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.ray

BOARD = Path(ray.__file__).parent / "dashboard/modules/metrics/dashboards/serve_llm_dashboard_panels.py"
NOT_OURS = re.compile(r"ray_vllm_(nixl|kv_offload|external|num_requests_swapped)")
"""Transfers between engines, caches outside, and swapping, which there is none of here."""


def wanted():
    """Return the series of Ray's board for LLMs on Serve, without what the parts of a histogram add."""
    names = set(re.findall(r"ray_vllm_\w+", BOARD.read_text(encoding="utf-8")))
    return sorted(re.sub(r"_(sum|count|bucket)$", "", name) for name in names if not NOT_OURS.match(name))


async def test_the_board_of_ray_finds_its_series(server, openai):
    assert len(wanted()) >= 12
    for _ in range(3):
        await openai.completions.create(model="scripted", prompt="x" * 80, max_tokens=20)
    seen = {}

    async def all_there():
        text = await asyncio.to_thread(server.ray_metrics)
        lines = [line for line in text.splitlines() if line.startswith("ray_vllm_")]  # of 10,000
        seen.clear()
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                if sample.labels.get("model_name") == "scripted":
                    seen.setdefault(re.sub(r"_(sum|count|bucket)$", "", sample.name), []).append(sample)
        told = most("generation_tokens_total") >= 60 and most("time_to_first_token_seconds_count") >= 3
        return set(wanted()) <= set(seen) and told

    def most(name):
        """Return the largest value of a series; each engine of this Ray has its own."""
        values = [s.value for some in seen.values() for s in some if s.name == f"ray_vllm_{name}"]
        return max(values, default=0.0)

    with contextlib.suppress(TimeoutError):
        await until(all_there, timeout_s=60.0, pause_s=1.0)  # megabytes each time, from a busy agent
    assert set(wanted()) - set(seen) == set(), sorted(seen)
    assert {sample.labels["engine"] for samples in seen.values() for sample in samples} == {"0"}
    assert all(sample.labels["WorkerId"] for samples in seen.values() for sample in samples)
    assert most("generation_tokens_total") >= 60
    assert most("time_to_first_token_seconds_count") >= 3
