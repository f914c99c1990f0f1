"""The emitter: what it remembers of tokens changes nothing that is said."""

from hypothesis import example, given
from hypothesis import strategies as st

from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.scripted import END_TOKEN
from cobali_ray.core.request import Request
from cobali_ray.core.sequence import Sequence
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


def open_sequence(stop):
    return Sequence(Request(request_id="a", prompt=(1,), max_tokens=99, stop=stop), arrived_s=0.0)


def said(emitter_of, answer, stop):
    sequence, events = open_sequence(stop), []
    for at, token in enumerate(answer):
        sequence.ending = "length" if at == len(answer) - 1 else None
        delta, hit = emitter_of(at).emit(sequence, token, None)
        events.append((delta, hit))
        if hit:
            break
    return events


def new_emitter(_=0):
    return Emitter(Pieces(PIECES.__getitem__, "<{}>".format, frozenset({END_TOKEN})))


@given(answers, answers, st.sampled_from([(), ("of",), ("a\n",)]))
@example([0], [4, 0, 5, 0], ())
@example([0], [2, 0, 2, 0], ())
def test_what_was_seen_before_changes_nothing(before, answer, stop):
    used = new_emitter()
    said(lambda _: used, before, ())
    events = said(lambda _: used, answer, stop)
    assert events == said(new_emitter, answer, stop)
    deltas = [delta for delta, _ in events if delta is not None]
    if not stop:
        whole = b"".join(PIECES[token] for token in answer).decode("utf-8", "replace")
        assert "".join(delta.text for delta in deltas) == whole
        assert sum(delta.n_tokens for delta in deltas) <= len(answer)


@given(answers, st.sampled_from([(), ("of",), ("a\n",), ("aab",), ("ofof\n",)]))
@example([0, 0, 0, 1], ("aa off",))
@example([7, 3, 0], ())
@example([0, 0, 0, 8], ("aa\n",))
def test_what_another_engine_said_is_taken_without_a_word(answer, stop):
    events = said(new_emitter, answer, stop)
    n_seen = 0
    for place, (delta, _) in enumerate(events):
        if delta is None or place == len(events) - 1:
            continue
        n_seen += len(delta.tokens)
        begun = tuple(answer[:n_seen])
        request = Request(request_id="a", prompt=(1,), max_tokens=99, stop=stop, said=begun)
        sequence, emitter, rest = Sequence(request, arrived_s=0.0), new_emitter(), []
        emitter.resume(sequence)
        for at in range(n_seen, len(events)):
            sequence.ending = "length" if at == len(answer) - 1 else None
            rest.append(emitter.emit(sequence, answer[at], None))
        assert [plain(event) for event in rest] == [plain(event) for event in events[place + 1 :]]


def plain(event):
    delta, hit = event
    return None if delta is None else (delta.text, delta.tokens), hit
