"""`cobali bench turns`: what of a prompt was there before, and what the report makes of it."""

from __future__ import annotations

import json

import httpx2
import pytest

from cobali_workloads.commands.turns import _report
from cobali_workloads.servers.conversation import MeasuredConversation, MeasuredTurn


@pytest.fixture
def answers():
    """Have a server answer with these: the tokens of a prompt, those of its answer, and how many it had."""
    waiting, bodies = [], []

    def answer(request):
        bodies.append(json.loads(request.content)["messages"])
        prompt, tokens, n_cached = waiting.pop(0)
        choice = {"message": {"content": f"answer {len(bodies)}"}, "token_ids": tokens}
        usage = {"prompt_tokens_details": {"cached_tokens": n_cached}}
        return httpx2.Response(200, json={"choices": [choice], "usage": usage, "prompt_token_ids": prompt})

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        yield waiting, bodies, http


def test_what_begins_like_an_earlier_prompt_and_its_answer_is_reusable(answers):
    waiting, bodies, http = answers
    waiting += [
        ([1, 2, 3, 9], [4, 5], 0),
        ([1, 2, 3, 9, 4, 5, 6, 7, 9], [8], 5),  # what was answered stands where it did
        ([1, 2, 3, 9, 4, 5, 6, 7, 8], [8], 7),  # a template took something out before the answer
        ([2, 2], [8], 0),
    ]
    talk = MeasuredConversation(http, "be brief", n_answer=2)
    asked = [talk.ask("http://nobody", f"message {i}") for i in range(4)]
    assert asked == [(4, 0, 0), (9, 6, 5), (9, 8, 7), (2, 0, 0)]
    assert [one["content"] for one in bodies[1]] == ["be brief", "message 0", "answer 1", "message 1"]


def test_the_report_has_shares_of_tokens_and_of_what_is_reusable():
    asked = [MeasuredTurn(100, 0, 0), MeasuredTurn(200, 160, 150), MeasuredTurn(300, 240, 210)]
    report = _report("cobali bench turns", asked, {3: "restarted"})
    assert report.tables[0].rows == [
        ("1", "100", "0", "0", "0.000", "-", ""),
        ("2", "200", "160", "150", "0.750", "0.938", ""),
        ("3", "300", "240", "210", "0.700", "0.875", "restarted"),
    ]
    assert report.config["cached_of_reusable"] == 0.9
