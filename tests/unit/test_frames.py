"""Messages behind their lengths, whatever pieces the stream arrives in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.actors.frames import MAX_MESSAGE_BYTES, FrameReader, frame
from cobali_ray.errors import InternalError


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 400), min_size=1))
def test_messages_come_out_as_they_went_in_however_they_are_cut(messages, lengths):
    stream, frames, read = b"".join(map(frame, messages)), FrameReader(), []
    while stream:
        for n_bytes in lengths:
            read += frames.feed(stream[:n_bytes])
            stream = stream[n_bytes:]
    assert read == messages


def test_a_message_is_out_with_its_last_byte():
    frames, stream = FrameReader(), frame(b"one") + frame(b"") + frame(b"two")
    assert frames.feed(stream[:6]) == []
    assert frames.feed(stream[6:7]) == [b"one"]
    assert frames.feed(stream[7:-1]) == [b""]
    assert frames.feed(stream[-1:]) == [b"two"]
    assert frames.feed(frame(b"then")) == [b"then"]


def test_a_length_that_nobody_sends_is_not_waited_for():
    longest, too_long = (n.to_bytes(4, "little") for n in (MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1))
    assert FrameReader().feed(longest) == []
    with pytest.raises(InternalError, match=str(MAX_MESSAGE_BYTES + 1)):
        FrameReader().feed(too_long)
