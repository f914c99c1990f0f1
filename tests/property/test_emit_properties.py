"""The emitter: all of an answer is said, once."""

from hypothesis import example, given
from hypothesis import strategies as st

from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.scripted import END_TOKEN
from cobali_ray.core.messages import Emit, Stopped
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.engine.emit import Emitter

PIECES = [
    b"a",
    b" of",
    b"",
    "ü".encode(),
    "ü".encode()[:1],
    "ü".encode()[1:],
    "日".encode()[:2],
    b"\xff",
    b"\n",
]
answers = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


def request(stop, said=()):
    return Request(request_id="a", prompt=(1,), max_tokens=99, stop=stop, sent_tokens=said)


def said(emitter, answer, asked, first=0):
    """Return the delta and the stop string of each token from `first` on, until one stops the answer."""
    emitter.open(asked)
    events = []
    for at in range(first, len(answer)):
        ending = "length" if at == len(answer) - 1 else None
        deltas, stopped = emitter.emit(Emit((("a", answer[at], 0, ending),)), {})
        events.append((deltas[0][1] if deltas else None, bool(stopped)))
        if stopped:
            break
    emitter.close("a")
    return events


def new_emitter():
    life = Sequence(request(()), arrived_s=0.0).stats(0.0)
    return Emitter(Pieces(PIECES.__getitem__, "<{}>".format, frozenset({END_TOKEN})), lambda _: life)


@given(answers)
@example([4, 0, 5, 0])
@example([2, 0, 2, 0])
def test_what_is_said_is_what_the_tokens_say(answer):
    deltas = [delta for delta, _ in said(new_emitter(), answer, request(())) if delta is not None]
    whole = b"".join(PIECES[token] for token in answer).decode("utf-8", "replace")
    assert "".join(delta.text for delta in deltas) == whole
    assert sum(delta.n_tokens for delta in deltas) <= len(answer)


@given(answers, st.sampled_from([(), ("of",), ("a\n",), ("aab",), ("ofof\n",)]))
@example([0, 0, 0, 1], ("aa off",))
@example([7, 3, 0], ())
@example([0, 0, 0, 8], ("aa\n",))
def test_what_another_engine_said_is_taken_without_a_word(answer, stop):
    events = said(new_emitter(), answer, request(stop))
    n_seen = 0
    for place, (delta, _) in enumerate(events):
        if delta is None or place == len(events) - 1:
            continue
        n_seen += len(delta.tokens)
        begun = tuple(answer[:n_seen])
        rest = said(new_emitter(), answer, request(stop, begun), n_seen)
        assert [plain(event) for event in rest] == [plain(event) for event in events[place + 1 :]]


def plain(event):
    delta, hit = event
    return None if delta is None else (delta.text, delta.tokens), hit


def test_what_follows_a_stop_string_in_the_same_pass_is_not_sent_and_counted():
    emitter = new_emitter()
    emitter.open(request(("of",)))
    tokens = tuple([("a", token, row, None) for row, token in enumerate((0, 1, 0, 0))])
    deltas, stopped = emitter.emit(Emit(tokens), {})
    assert "".join(delta.text for _, delta in deltas) == "a "
    assert stopped == [Stopped("a", "of", 2)]


def test_nothing_is_sent_of_who_has_ended():
    emitter = new_emitter()
    emitter.open(request(()))
    emitter.close("a")
    assert emitter.emit(Emit((("a", 0, 0, None),)), {}) == ([], [])
