"""Whatever comes and goes: each text of whoever stays is computed once, and each request ends once."""

from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.embedding import EmbeddingKind, EmbeddingQueue, EmbeddingRequest

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        lengths.map(lambda some: ("submit", some)),
        st.integers(0, 60).map(lambda room: ("pass", room)),
        st.integers(0, 8).map(lambda number: ("cancel", number)),
    ),
    max_size=30,
)


@given(steps, st.booleans(), st.integers(1, 6))
def test_every_text_is_computed_once(steps, splits, n_texts):
    kind = EmbeddingKind(4, 40, 20 if splits else 40, 20, n_texts, "last", splits=splits)
    queue, requests, done, ends = EmbeddingQueue(kind), [], {}, []

    def compute(room, now_s):
        pieces = queue.pack(room, now_s)
        assert bool(pieces) == (queue.n_texts > 0)
        assert len(pieces) <= n_texts
        n_tokens = sum(len(piece.tokens) for piece in pieces)
        assert n_tokens <= kind.n_batch
        assert n_tokens <= kind.n_together or len(pieces) == 1
        for place, piece in enumerate(pieces):
            text = (piece.request.request_id, piece.text_id)
            assert piece.start == len(done.get(text, ()))
            assert place == 0 or (piece.last and not piece.start)
            done[text] = [*done.get(text, ()), *piece.tokens]
        ends.extend(queue.computed(pieces, now_s))

    for now_s, (what, value) in enumerate(steps):
        if what == "submit":
            texts = [[100 * number + i for i in range(n)] for number, n in enumerate(value)]
            tenant = "ab"[len(requests) % 2]
            requests.append(EmbeddingRequest.of(texts, request_id=f"r{len(requests)}", tenant=tenant))
            queue.submit(requests[-1], float(now_s))
        elif what == "cancel":
            ends.extend(queue.cancel(f"r{value}", float(now_s)))
        else:
            compute(value, float(now_s))
    while len(queue):
        compute(1 << 30, 100.0)
    assert sorted(finish.end.request_id for finish in ends) == sorted(r.request_id for r in requests)
    assert (queue.n_texts, queue.n_tokens, queue.n_left) == (0, 0, len(requests))
    assert queue.n_left_tokens == sum(r.n_prompt for r in requests)
    whole = {finish.end.request_id for finish in ends if finish.end.error is None}
    for request in requests:
        if request.request_id in whole:
            for number in range(len(request.ends)):
                assert done[request.request_id, number] == list(request.text(number))
