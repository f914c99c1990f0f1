"""Whatever comes and goes: each text of whoever stays is computed once, and each request ends once."""

from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core import messages
from cobali_ray.core.request.embedding import EmbeddingKind, EmbeddingRequest
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.errors import InternalError, QueueFullError

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        lengths.map(lambda some: ("texts", some)),
        st.integers(1, 9).map(lambda n: ("prompt", n)),
        st.tuples(st.integers(0, 60), st.integers(0, 9), st.integers(0, 9)).map(lambda one: ("tick", one)),
        st.integers(0, 8).map(lambda number: ("cancel", number)),
    ),
    max_size=30,
)


class Crowd:
    """A scheduler of one slot that is asked for texts and for answers, and what came of it."""

    def __init__(self, kind, max_queue):
        limits = EngineLimits(
            n_slots=1, n_ctx_slot=32, n_cells=32, token_budget=8, prefill_chunk=8, max_queue=max_queue
        )
        self.scheduler, self.kind = Scheduler(limits, embedding=kind, check_every=1), kind
        self.requests, self.done, self.ends, self.now_s = {}, {}, {}, 0.0

    def do(self, event):
        out = self.scheduler.handle(event)
        for one in out:
            if isinstance(one, messages.Finish):
                assert one.end.request_id not in self.ends, "every request ends once"
                self.ends[one.end.request_id] = one.end
        return out

    def submit(self, request):
        self.requests[request.request_id] = request
        self.do(messages.Submitted(request, self.now_s))

    def tick(self, room=1 << 30, fails=None, leaves=None):
        self.scheduler.texts.times.most = lambda _: room
        out = self.do(messages.TickBegun(self.now_s))
        for embed in [one for one in out if isinstance(one, messages.Embed)]:
            self.check(embed)
            if leaves in self.requests:
                self.do(messages.Cancelled(leaves, self.now_s))
            out = self.do(messages.Embedded({fails: InternalError("broken")} if fails else {}, self.now_s))
        for compute in [one for one in out if isinstance(one, messages.Compute)]:
            if self.do(messages.Sampled([7] * len(compute.plan.rows), {}, self.now_s)):
                self.do(messages.Emitted([], self.now_s))
            self.do(messages.TickEnded(self.now_s))

    def check(self, embed):
        kind, pieces = self.kind, embed.pieces
        n_tokens = sum(len(piece.tokens) for piece in pieces)
        assert 0 < len(pieces) <= kind.n_texts
        assert n_tokens <= kind.n_batch
        assert n_tokens <= kind.n_together or len(pieces) == 1
        for place, piece in enumerate(pieces):
            name = piece.request.request_id
            assert name not in self.ends, "nothing is computed for who has ended"
            assert (piece.request in embed.begun) == all(name != done for done, _ in self.before(pieces))
            text = (name, piece.text_id)
            assert piece.start == len(self.done.get(text, ()))
            assert place == 0 or (piece.last and not piece.start)
            self.done[text] = [*self.done.get(text, ()), *piece.tokens]

    def before(self, pieces):
        now = {(piece.request.request_id, piece.text_id) for piece in pieces if not piece.start}
        return [text for text in self.done if text not in now]


@given(steps, st.booleans(), st.integers(1, 6), st.sampled_from([128, 2]))
def test_every_text_is_computed_once_and_every_request_ends_once(steps, splits, n_texts, max_queue):
    kind = EmbeddingKind(4, 40, 20 if splits else 40, 20, n_texts, "last", splits=splits)
    crowd = Crowd(kind, max_queue)
    for what, value in steps:
        crowd.now_s += 1.0
        number = len(crowd.requests)
        if what == "texts":
            texts = [[100 * place + i for i in range(n)] for place, n in enumerate(value)]
            crowd.submit(EmbeddingRequest.of(texts, request_id=f"r{number}", tenant="ab"[number % 2]))
        elif what == "prompt":
            prompt = tuple(range(value))
            crowd.submit(
                Request(request_id=f"r{number}", prompt=prompt, max_tokens=3, tenant="ab"[number % 2])
            )
        elif what == "cancel":
            crowd.do(messages.Cancelled(f"r{value}", crowd.now_s))
        else:
            room, fails, leaves = value
            crowd.tick(room, f"r{fails}", f"r{leaves}")
    while crowd.scheduler.has_work:
        crowd.now_s += 1.0
        crowd.tick()
    assert crowd.ends.keys() == crowd.requests.keys()
    texts, left = crowd.scheduler.texts, crowd.scheduler.counts.texts_left
    asked = [one for one in crowd.requests.values() if isinstance(one, EmbeddingRequest)]
    assert (texts.n_texts, texts.queue.n_tokens) == (0, 0)
    assert (left.n, left.n_tokens_of.total()) == (len(asked), sum(one.n_prompt for one in asked))
    for request in asked:
        end = crowd.ends[request.request_id]
        assert not isinstance(end.error, QueueFullError) or (max_queue == 2 and end.stats.queue_s is None)
        for place in range(len(request.ends)):
            if end.error is None:
                assert crowd.done[request.request_id, place] == list(request.text(place))
