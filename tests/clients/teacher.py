"""The real server over a stand-in for the model that knows what a good model would say.

`python -m tests.clients.teacher` serves on loopback, prints its address and ends with its input. The template
is a Qwen model's, so calls and reasoning are read and held as those of a model are. What the grammar does not
allow goes on with whatever ends it soonest. The server is `strict`: fields that it does not know are errors,
unless it is started with `--lenient`.
"""

import json
import re
import sys
from functools import cache

import numpy as np

from cobali_ray.backend.sampling import sample_rows
from cobali_ray.backend.scripted import END_TOKEN, N_BYTES, N_VOCAB, ByteVocab, ScriptedBackend
from cobali_ray.engine import opening
from tests.page.stack import Site
from tools.install import TEMPLATES

TEMPLATE = TEMPLATES / "Qwen-Qwen3-0.6B.jinja"
CITIES = ("Oslo", "Rome", "Lima")
OPENS = b"<|im_start|>assistant\n"
NO_THOUGHT = b"<think>\n\n</think>\n\n"
"""What the template writes for a model that is not to think."""
TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)
TOOLS = re.compile(r"^\{\"type\": \"function\".*\}$", re.MULTILINE)
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def facts(text):
    """Return what a text says that tools and schemas may want: lists of values by name."""
    person = re.findall(r"([A-Z]\w+) is (-?\d+) years old", text)
    report = re.findall(r"(-?\d+) degrees", text)
    return {
        "name": [name for name, _ in person],
        "age": [int(age) for _, age in person],
        "city": [city for city in re.findall(r"\w+", text) if city in CITIES],
        "degrees": [int(degrees) for degrees in report],
    }


@cache
def says(prompt):
    """Return what a good model answers."""
    system, *_ = turns = TURN.findall(prompt.decode("utf-8", "replace"))
    tools = [json.loads(line) for line in TOOLS.findall(system[1])] if system[0] == "system" else []
    told = [turn for turn in turns if turn[0] != "system"]
    last = max(i for i, (role, text) in enumerate(told) if role == "user" and not RESULT.search(text))
    question = told[last][1]
    wrong = "validation error" in question.lower() + told[-1][1].lower()
    later = "".join(text for _, text in told[0 if wrong else last :])
    known = facts(later)
    if wrong:
        known["age"] = [abs(age) for age in known["age"]]
    called = [json.loads(call) for call in CALL.findall(later)]
    calls = [call for tool in tools for call in calls_of(tool, known) if call not in called]
    calls += asked_for(question, {tool["function"]["name"] for tool in tools})[len(called) :]
    if calls:
        return spoken(question) + "\n".join(
            f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls
        )
    if words := re.search(r'^Say (".*")', question, re.MULTILINE):
        return spoken(question) + json.loads(words[1])
    if "JSON" in question:
        return json.dumps({name: values[0] for name, values in known.items() if values})
    if results := RESULT.findall(later):
        return spoken(question) + f"The tools say: {'; '.join(results)}."
    return "Hello! What can I do for you?"


def asked_for(question, names):
    """Return the calls that a question spells out, of tools that there are."""
    asked = re.findall(r"^Call (\w+) with (\{.*\})", question, re.MULTILINE)
    return [{"name": name, "arguments": json.loads(arguments)} for name, arguments in asked if name in names]


def calls_of(tool, known):
    """Return the calls of a tool that can be made with what is known: one for each value."""
    name = tool["function"]["name"]
    names = list(tool["function"].get("parameters", {}).get("properties", {}))
    if name.startswith("transfer_to"):  # another agent knows more
        return [{"name": name, "arguments": {}}]
    if not names or not all(known.get(name) for name in names):
        return []
    rows = zip(*(known[name] for name in names), strict=False)
    return [{"name": name, "arguments": dict(zip(names, row, strict=True))} for row in rows]


def spoken(question):
    """Return what stands before a call or an answer, if the question asks for it."""
    if "Think" in question:
        return "<think>\nA tool knows that.\n</think>\n\n"
    return "One moment, please.\n" if "Say so" in question else ""


class Teacher(ScriptedBackend):
    """Says what `says` does, byte by byte."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.words = ByteVocab(TEMPLATE.read_text())
        self._heard = [bytearray() for _ in range(self.n_slots)]
        rank = {
            **dict.fromkeys(b"013456789", 3.0),
            ord("2"): 4.0,
            **dict.fromkeys(b'"]}', 6.0),
            END_TOKEN: 9.0,
        }
        self._anything = np.full(N_VOCAB, -50.0, np.float32)
        self._anything[32:127] = 0.0
        for token, logit in rank.items():
            self._anything[token] = logit

    def forward(self, batch):
        super().forward(batch)
        at = 0
        for slot_id, start, length, _ in batch.spans:
            heard = self._heard[slot_id]
            del heard[start:]
            heard += bytes(batch.token[at : at + length].astype(np.uint8))
            at += length

    def copy(self, donor_id, slot_id, n_keep):
        super().copy(donor_id, slot_id, n_keep)
        self._heard[slot_id][:] = self._heard[donor_id][:n_keep]

    def measure_cell(self):
        return 0  # what was heard is not kept outside the slots

    def sample(self, rows):
        self._computed = None
        return sample_rows(np.stack([self._row(slot_id) for slot_id in self._sampled_slots]), rows)

    def _row(self, slot_id):
        row = self._anything.copy()
        prompt, _, answer = bytes(self._heard[slot_id]).rpartition(OPENS)
        answer = answer.removeprefix(NO_THOUGHT)
        wish = says(prompt).encode()
        if wish == answer:
            row[END_TOKEN] = 1000.0
        elif wish.startswith(answer):
            row[wish[len(answer)]] = 1000.0
        return row


def main():
    assert N_BYTES == 256
    opening.ScriptedBackend = Teacher
    settings = {
        "n_ctx": 131072,
        "prefill_chunk": 4096,
        "token_budget": None,
        "model": "builtin:scripted:0.001",
    }
    strict = "--lenient" not in sys.argv[1:]
    with Site(model_id="tiny", chat_template=TEMPLATE, strict=strict, **settings) as site:
        sys.stdout.write(f"{site.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
