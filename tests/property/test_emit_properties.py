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
