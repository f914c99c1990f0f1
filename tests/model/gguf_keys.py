"""A copy of a GGUF file that says more about itself."""

import struct

STRING, FLOAT, U32 = 8, 6, 4
ALIGNMENT = 32


def _string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pair(key, value):
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", STRING) + _string(value)
    kind, code = (FLOAT, "f") if isinstance(value, float) else (U32, "I")
    return _string(key) + struct.pack(f"<I{code}", kind, value)


def with_keys(source, target, keys):
    """Write `source` with these keys in front of its own; a last one fills up to the file's alignment."""
    raw = source.read_bytes()
    (n_keys,) = struct.unpack_from("<Q", raw, 16)
    more = b"".join(_pair(*item) for item in keys.items())
    n_missing = -(len(more) + len(_pair("test.fill", ""))) % ALIGNMENT
    more += _pair("test.fill", "x" * n_missing)
    target.write_bytes(raw[:16] + struct.pack("<Q", n_keys + len(keys) + 1) + raw[24:24] + more + raw[24:])
    return target
