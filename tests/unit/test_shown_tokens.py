"""Control tokens whose text the answer shows: the requests that ask for it see it, nobody else."""

import pytest
from answers import CALL, CALL_END, Setup

from cobali_ray.backend.scripted import END_TOKEN
from cobali_ray.core.request.events import Delta
from cobali_ray.core.request.request import SamplingParams

SCRIPT = "a<call>b</call>c<call>"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        pytest.param((), "abc", id="none"),
        pytest.param((CALL,), "a<call>bc<call>", id="one"),
        pytest.param((CALL, CALL_END), SCRIPT, id="both"),
        pytest.param((CALL, END_TOKEN), "a<call>bc<call>", id="ends-stay-unshown"),
    ],
)
def test_the_text_is_shown_to_whom_it_was_promised(shown, text):
    s = Setup()
    s.submit("other", SCRIPT)
    s.submit("r", SCRIPT, shown_tokens=shown)
    s.run()
    s.submit("later", SCRIPT)
    s.run()
    assert s.answer("r")[0] == text
    assert [s.answer(name)[0] for name in ("other", "later")] == ["abc", "abc"]
    deltas = [event for event in s.events.events["r"] if isinstance(event, Delta)]
    assert sum(delta.n_tokens for delta in deltas) <= s.answer("r")[1].stats.n_output == 7


def test_stop_strings_reach_over_shown_tokens():
    text, end = Setup().ask("a<call>b</call>c", shown_tokens=(CALL, CALL_END), stop=("l>b</c",))
    assert (text, end.finish_reason) == ("a<cal", "stop")
    assert Setup().ask("a<call>b</call>c", stop=("b</call>",))[0] == "abc"


def test_logprobs_name_them():
    s = Setup()
    shown = (CALL, END_TOKEN)
    s.submit("r", "<call>x", shown_tokens=shown, sampling=SamplingParams(temperature=0, n_logprobs=2))
    s.submit("other", "<call>x", sampling=SamplingParams(temperature=0, n_logprobs=2))
    s.run()

    def named(request_id):
        deltas = [event for event in s.events.events[request_id] if isinstance(event, Delta)]
        return [(one.token_id, one.piece, one.top[0][1]) for delta in deltas for one in delta.logprobs]

    end = (END_TOKEN, b"", b"")
    assert named("r") == [(CALL, b"<call>", b"<call>"), (ord("x"), b"x", b"x"), end]
    assert named("other") == [(CALL, b"", b""), (ord("x"), b"x", b"x"), end]


def test_a_stop_token_that_is_shown_ends_unshown_unless_it_is_asked_for():
    sampling = SamplingParams(temperature=0, stop_token_ids=(CALL,))
    asked = {"shown_tokens": (CALL,), "sampling": sampling}
    assert Setup().ask("a<call>b", **asked)[0] == "a"
    assert Setup().ask("a<call>b", include_stop=True, **asked)[0] == "a<call>"
