"""What host memory keeps: blocks, tails, what goes first. For other rules, see `cobali bench keep`."""

from array import array

from cobali_ray.core.cache.host_tier import MOVE_S, HostTier, Moves

BLOCK = 64


def text(*parts):
    return array("i", [token for part in parts for token in part])


def run(first, n):
    return range(first, first + n)


def found(tier, tokens):
    blocks = tier.match(tokens, len(tokens))
    return blocks[-1].end if blocks else 0


def test_a_shared_beginning_lies_there_once():
    tier = HostTier(1000)
    one, other = text(run(0, 128), run(1000, 64)), text(run(0, 128), run(2000, 64))
    assert len(tier.insert(one, 192)[0]) == 3
    new, gone = tier.insert(other, 192)
    assert [(b.start, b.end) for b in new] == [(128, 192)]
    assert not gone
    assert tier.n_used == 256
    assert found(tier, one) == found(tier, other) == 192


def test_a_sequence_comes_back_to_the_token_where_it_was_left_and_a_longer_one_takes_its_tail_in():
    tier, tokens = HostTier(1000), text(run(0, 200))
    tier.insert(tokens, 100)
    assert found(tier, tokens) == 100
    assert found(tier, text(run(0, 90), run(500, 9))) == 64, "others begin at the last whole block they share"
    (tail,) = tier.match(tokens, 200)[1:]
    new, gone = tier.insert(tokens, 150)
    assert gone == [tail.block_id]
    assert [(b.start, b.end) for b in new] == [(64, 128), (128, 150)]
    assert found(tier, tokens) == tier.n_used == 150
    assert tier.insert(tokens, 150) == ([], []), "nothing is new"


def test_what_was_used_last_stays_and_an_entry_goes_from_its_end():
    tier = HostTier(4 * BLOCK)
    old, new = text(run(0, 128)), text(run(1000, 128))
    tier.insert(old, 128)
    tier.insert(new, 128)
    tier.use(tier.match(old, 128))
    _, gone = tier.insert(text(run(5000, 64)), 64)
    assert len(gone) == 1
    assert (found(tier, old), found(tier, new)) == (128, 64)
    assert (tier.n_saved, tier.n_evicted) == (320, 64)


def test_more_than_there_is_room_for_is_kept_in_part():
    tier = HostTier(100)
    new, gone = tier.insert(text(run(0, 300)), 300)
    assert ([b.end for b in new], gone, tier.n_used) == ([64], [], 64)
    assert tier.n_evicted == 0, "it never was there"
    assert HostTier(0).insert(text(run(0, 300)), 300) == ([], [])


def test_what_is_read_from_disk_goes_behind_what_is_here():
    tier, tokens = HostTier(1000), text(run(0, 256))
    assert tier.load(tokens, 64, 128) == ([], []), "what comes before is gone"
    tier.insert(tokens, 100)
    (tail,) = tier.match(tokens, 256)[1:]
    new, gone = tier.load(tokens, 64, 192)
    assert [(b.start, b.end) for b in new] == [(64, 128), (128, 192)]
    assert gone == [tail.block_id]
    assert tier.load(tokens, 64, 192) == ([], []), "it is here"
    assert [(b.start, b.end) for b in tier.load(tokens, 128, 256)[0]] == [(192, 256)]
    assert (tier.n_saved, tier.n_used) == (100, 256)
    assert tier.problems() == []


def test_clearing_forgets_the_blocks_and_not_the_counts():
    tier = HostTier(1000)
    tier.insert(text(run(0, 64)), 64)
    tier.clear()
    assert (found(tier, text(run(0, 64))), tier.n_used, tier.n_saved) == (0, 0, 64)


def test_a_tick_moves_one_and_then_what_fits_in_its_time():
    moves = Moves(cell_bytes=2000)
    assert moves.affords(10**9), "the first move of a tick is free"
    moves.plan(5000)
    assert moves.affords(999)
    moves.plan(600)
    assert moves.affords(399)
    assert not moves.affords(401)
    moves.learn(5600, 0.01)
    assert moves.spent_s == 0.01
    moves.begin()
    assert (moves.spent_s, moves.affords(10**9)) == (0.0, True)


def test_how_long_moves_take_is_learned():
    moves = Moves(cell_bytes=2000)
    for _ in range(30):
        moves.learn(1000, 10 * MOVE_S)
    moves.plan(5000)
    assert moves.affords(99)
    assert not moves.affords(101)
