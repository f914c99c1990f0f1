"""Where special tokens are found, also where they overlap."""

import pytest

from cobali_ray.backend.vocab import find_specials, parts


@pytest.mark.parametrize(
    ("specials", "text", "places"),
    [
        pytest.param([b"<end>"], b"a<end><end>b", [1, 6], id="side-by-side"),
        pytest.param([b"<end>", b"end"], b"<end>end", [0, 5], id="inside-a-longer-one"),
        pytest.param([b"abc", b"cd"], b"abcd", [0], id="overlapping-the-end-of-a-longer-one"),
        pytest.param([b"bcd", b"ab"], b"abcd", [1], id="overlapping-the-start-of-a-longer-one"),
        pytest.param([b"aa"], b"aaaaa", [0, 2], id="with-itself-from-the-left"),
        pytest.param([b"aaa", b"aa"], b"aaaaa", [0, 3], id="runs"),
        pytest.param([b"<a>"], b"nothing", [], id="none"),
    ],
)
def test_each_takes_what_no_longer_one_has_taken(specials, text, places):
    assert find_specials(text, specials) == places


def test_looking_stops_when_there_are_too_many():
    assert len(find_specials(b"<a>" * 100, [b"<a>"], 7)) == 8


def test_parts_begin_at_special_tokens(monkeypatch):
    monkeypatch.setattr("cobali_ray.backend.vocab.MAX_PER_PART", 2)
    text = b"x<a>y<a><a>z<a>"
    cut = list(parts(text, find_specials(text, [b"<a>"])))
    assert cut == [b"x<a>y<a>", b"<a>z<a>"]
