"""lm-eval: loglikelihood tasks through `local-completions`, and an oracle that reads one token at a time."""

import json
import math
import re
import subprocess

import lm_eval
import pytest
import requests
import yaml
from lm_eval.tasks import TaskManager

from conftest import ROOT

PYTHON = ROOT / ".venv" / "bin" / "python"
QUESTIONS = [
    ("The sun rises in the", ["east", "fridge", "letter"], 0),
    ("Question: What do cats drink?\nAnswer:", ["milk", "seventeen", "because"], 0),
    ("Once upon a time there was a little", ["girl", "of", "therefore"], 0),
    ("Two and two is", ["four", "under", "running"], 0),
    ("She opened the door and", ["went in", "blue the", "of of"], 0),
    ("Ünïcode, 日本", ["語", "x", "🙂"], 0),
]
TEXTS = [
    "Once upon a time there was a little girl who lived in a house by the sea.",
    "The weather in Oslo is 4 degrees and sunny.",
    "def add(a, b):\n    return a + b\n",
    "日本語のテキスト and an emoji 🙂.",
]
CHOICES = {
    "task": "local_choices",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{label}}",
    "doc_to_choice": "choices",
    "metric_list": [{"metric": "acc"}],
}
ROLLING = {
    "task": "local_rolling",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}],
}


@pytest.fixture(scope="session")
def server(request):
    """The address of a server with a real model."""
    if url := request.config.getoption("--url"):
        yield url.rstrip("/")
        return
    command = [PYTHON, "-m", "tests.clients.scorer"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        url = one.stdout.readline().strip()
        assert url, "the server did not start"
        yield url
        one.stdin.close()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with two tasks and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = {
        "local_choices": [dict(zip(("question", "choices", "label"), row, strict=True)) for row in QUESTIONS],
        "local_rolling": [{"text": text} for text in TEXTS],
    }
    for task in (CHOICES, ROLLING):
        data = folder / f"{task['task']}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[task["task"]]))
        found = {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
        }
        (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(task | found))
    return folder


@pytest.fixture
def evaluate(server, model, tasks):
    def go(task, **options):
        asked = {"model": model, "base_url": f"{server}/v1/completions", "max_length": 256} | options
        return lm_eval.simple_evaluate(
            model="local-completions",
            model_args=asked,
            tasks=[task],
            task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
            bootstrap_iters=0,
            log_samples=True,
        )

    return go


@pytest.fixture
def encode(server):
    def go(text):
        body = {"prompt": text, "add_special_tokens": False}
        return requests.post(f"{server}/tokenize", json=body, timeout=60).json()["tokens"]

    return go


def oracle(prompts):
    """Return (logprob, is greedy) of each token but the first of these prompts."""
    command = [PYTHON, "-m", "tests.clients.scorer", "oracle"]
    done = subprocess.run(
        command, cwd=ROOT, input=json.dumps(prompts), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.scripted
@pytest.mark.parametrize(
    "options",
    [{}, {"num_concurrent": 4}, {"batch_size": 5}],
    ids=["one-at-a-time", "four-at-once", "lists-of-prompts"],
)
def test_choices_are_as_likely_as_the_oracle_says(evaluate, encode, options):
    result = evaluate("local_choices", **options)
    told, prompts, n_contexts = [], [], []
    for sample in result["samples"]["local_choices"]:
        asked = zip(sample["filtered_resps"], sample["arguments"], strict=True)
        for response, (context, continuation) in asked:
            told.append(response)
            prompts.append(encode(context + continuation))
            n_contexts.append(len(encode(context)))
    assert len(told) == 3 * len(QUESTIONS)
    for (logprob, greedy), scored, n_context in zip(told, oracle(prompts), n_contexts, strict=True):
        own = scored[n_context - 1 :]
        assert float(logprob) == pytest.approx(sum(one for one, _ in own), rel=0.01)
        assert str(greedy) == str(all(likeliest for _, likeliest in own))
    assert result["results"]["local_choices"]["acc,none"] >= 0.5


@pytest.mark.scripted
def test_perplexities_are_the_oracles(evaluate, encode, server):
    result = evaluate("local_rolling", num_concurrent=2)["results"]["local_rolling"]
    info = requests.get(f"{server}/tokenizer_info", timeout=60).json()
    prefix = encode(info["bos_token"] or info["eos_token"])
    assert len(prefix) == 1
    scored = oracle([prefix + encode(text) for text in TEXTS])
    total = sum(logprob for one in scored for logprob, _ in one)
    n_words = sum(len(re.split(r"\s+", text)) for text in TEXTS)  # as lm-eval counts them
    n_bytes = sum(len(text.encode()) for text in TEXTS)
    assert math.log(result["word_perplexity,none"]) == pytest.approx(-total / n_words, rel=2e-3)
    assert math.log(result["byte_perplexity,none"]) == pytest.approx(-total / n_bytes, rel=2e-3)


def test_texts_instead_of_tokens(evaluate):
    whole = evaluate("local_rolling")["results"]["local_rolling"]
    text = evaluate("local_rolling", tokenized_requests=False)["results"]["local_rolling"]
    assert text["byte_perplexity,none"] == pytest.approx(whole["byte_perplexity,none"], rel=0.2)
