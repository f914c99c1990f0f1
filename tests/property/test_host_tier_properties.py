"""What holds for the host tier's books, whatever is kept, used, lost and given up."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.cache.host_tier import HostTier

BLOCK = 4
texts = st.lists(st.integers(0, 1), min_size=1, max_size=20).map(lambda tokens: array("i", tokens))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), texts),
        st.tuples(st.just("use"), texts),
        st.tuples(st.just("lose"), st.integers(0, 30)),
    ),
    max_size=30,
)


class Memory:
    """What whoever moves the cells would hold: the tokens of each block, from the beginning on."""

    def __init__(self, n_cells):
        self.tier, self.held, self.longest = HostTier(n_cells, BLOCK), {}, 0

    def insert(self, tokens):
        new, gone = self.tier.insert(tokens, len(tokens))
        for block_id in gone:
            del self.held[block_id]
        for block in new:
            assert block.block_id not in self.held, "nothing is moved twice"
            self.held[block.block_id] = (block.start, tuple(tokens[: block.end]))

    def lose(self, block_id):
        gone = self.tier.drop([block_id])
        assert (block_id in gone) == (block_id in self.held)
        for one in gone:
            del self.held[one]

    def longest_kept(self, tokens, most):
        """Count by looking at everything: how far a chain of blocks leads that `tokens` begins with."""
        ends = {0}
        for _ in range(len(tokens)):
            ends |= {
                len(text)
                for start, text in self.held.values()
                if start in ends and start < most and text == tuple(tokens[: len(text)])
            }
        return max(ends)


@given(steps, st.integers(1, 60), texts)
def test_the_books_hold_and_a_lookup_finds_the_longest_beginning(steps, n_cells, asked):
    memory = Memory(n_cells)
    for step, what in steps:
        if step == "insert":
            memory.insert(what)
        elif step == "use":
            memory.tier.use(memory.tier.match(what, len(what)))
        else:
            memory.lose(what)
        assert memory.tier.problems() == []
        n_held = sum(len(text) - start for start, text in memory.held.values())
        assert memory.tier.n_used == n_held <= n_cells, "the books say what is held, within the bound"
        for most in (len(asked), max(len(asked) - 2, 0)):
            found = memory.tier.match(asked, most)
            assert all(block.block_id in memory.held for block in found), "who was given up is not found"
            assert [b.start for b in found] == [0, *(b.end for b in found)][: len(found)]
            assert (found[-1].end if found else 0) == memory.longest_kept(asked, most)


@given(st.lists(texts, min_size=1, max_size=12))
def test_with_room_for_all_everything_is_found_to_its_last_token(kept):
    memory = Memory(1000)
    for tokens in kept:
        memory.insert(tokens)
        assert memory.tier.match(tokens, len(tokens))[-1].end == len(tokens)
    assert memory.tier.n_evicted == 0
