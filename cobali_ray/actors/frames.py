"""Messages in a stream of bytes, each behind its length. Pure: it knows no socket, so any stream will do."""

from __future__ import annotations

from cobali_ray.errors import InternalError

MAX_MESSAGE_BYTES = 1 << 26
"""The longest message: many times what 512 streams with logprobs say in a tick. A reader believes no more."""
MAX_BACKLOG = 512
"""Messages (ticks) that may wait for one ingress, besides what the socket's buffer or ZeroMQ and TCP hold,
before the requests of those that do not fit are ended."""
_HEADER_BYTES = 4


def frame(message: bytes) -> bytes:
    """Return a message with its length in front, as it goes into the stream. It must not be too long."""
    return len(message).to_bytes(_HEADER_BYTES, "little") + message


class FrameReader:
    """One stream's messages, out of whatever pieces arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take a piece; return the messages that are whole now. Raises InternalError where it is broken."""
        self._rest += data
        messages, begin = [], _HEADER_BYTES
        while len(self._rest) >= begin:
            n_bytes = int.from_bytes(self._rest[begin - _HEADER_BYTES : begin], "little")
            if n_bytes > MAX_MESSAGE_BYTES:
                raise InternalError(f"a message of {n_bytes} bytes is announced")
            if len(self._rest) < begin + n_bytes:
                break
            messages.append(bytes(self._rest[begin : begin + n_bytes]))
            begin += n_bytes + _HEADER_BYTES
        del self._rest[: begin - _HEADER_BYTES]
        return messages
