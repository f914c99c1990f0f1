"""Every example of the page and the documents succeeds whatever is drawn, as the server draws."""

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cobali_ray.backend.vocab import Vocab
from cobali_ray.core.request.request import Request
from cobali_ray.engine.opening import engine_on, open_backend
from cobali_ray.models.registry import resolve
from cobali_ray.settings import EngineSettings
from cobali_workloads.offline import run_offline
from training.corpus.checks import bullets, has, json_value, number, passes, story

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
SETTINGS = EngineSettings(n_slots=16, n_ctx=2048, n_threads=1, flash_attn="off")
NEEDS_TOOLS = re.compile(r'```python\n(?:(?!```).)*"tools".*?```', re.DOTALL)
"""Such a question is asked in tests/model/test_ollama_real.py, with a tool to call."""
CHECKS = {
    "Explain continuous batching in three bullet points.": bullets(3, "tick", "batch"),
    "Write a short story about a sailor and a lamp.": story(
        "sailor", "lamp", "once upon a time", "in the end"
    ),
    "Ada is 36 years old. Answer in JSON.": json_value({"name": "Ada", "age": 36}),
    "Hello! What are you?": has("Tiny", "very small", "demonstration"),
    "What is continuous batching?": has("tick", "nobody waits"),
    "How do I get streaming answers?": has("stream", "true", "curl"),
    "What is 17 + 25?": number(42),
    "Who won the match yesterday?": has("not know the news"),
}


def offered():
    """Return every example of the page and of the documents that asks without tools."""
    page = (ROOT / "cobali_ray" / "ui" / "answer" / "empty.js").read_text(encoding="utf-8")
    names = ("README.md", "docs/structured-output.md", "docs/tiny.md")
    texts = [NEEDS_TOOLS.sub("", (ROOT / name).read_text(encoding="utf-8")) for name in names]
    (listed,) = re.findall(r"const EXAMPLES = \[(.*?)\];", page, re.DOTALL)
    found = re.findall(r'"(.+)",', listed)
    for text in texts:
        found += re.findall(r'"role": "user", "content": "([^"]+)"', text)
        found += re.findall(r'with "(What is .+)" \| answered', text)
    _, _, rows = texts[-1].partition("| asked | answered |\n|---|---|\n")
    found += re.findall(r"^\| (.+?) \| .+ \|$", rows.partition("\n\n")[0], re.MULTILINE)
    return found


def test_every_example_has_a_check():
    assert set(offered()) == set(CHECKS)


@pytest.mark.parametrize("n_times", [3, pytest.param(20, marks=pytest.mark.thorough)])
def test_every_example_succeeds_every_time(n_times):
    path = resolve("builtin:tiny")
    backend, vocab = open_backend(SETTINGS, path), Vocab.load(path)
    try:
        advised = backend.sampling
        assert advised.temperature == 0.3
        requests = [
            Request(
                request_id=f"{i} {seed}",
                prompt=tuple(
                    vocab.tokenize(
                        vocab.chat.render([{"role": "user", "content": question}]), add_special=False
                    )
                ),
                max_tokens=300,
                sampling=replace(advised, seed=seed),
            )
            for i, question in enumerate(CHECKS)
            for seed in range(n_times)
        ]
        texts = run_offline(partial(engine_on, backend, SETTINGS), requests).texts
    finally:
        vocab.close()
        backend.close()
    failed = Counter(
        (question, texts[f"{i} {seed}"])
        for i, (question, check) in enumerate(CHECKS.items())
        for seed in range(n_times)
        if not passes(check, texts[f"{i} {seed}"])
    )
    assert not failed
