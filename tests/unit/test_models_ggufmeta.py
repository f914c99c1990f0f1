import struct

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter

from cobali_ray.errors import ConfigError
from cobali_ray.models.ggufmeta import TensorEntry, read_header, require_whole

VALUES = {
    "a.u8": (250, GGUFValueType.UINT8), "a.i8": (-3, GGUFValueType.INT8),
    "a.u16": (65000, GGUFValueType.UINT16), "a.i16": (-300, GGUFValueType.INT16),
    "a.u32": (4_000_000_000, GGUFValueType.UINT32), "a.i32": (-70_000, GGUFValueType.INT32),
    "a.u64": (2**63 + 1, GGUFValueType.UINT64), "a.i64": (-(2**40), GGUFValueType.INT64),
    "a.f32": (0.5, GGUFValueType.FLOAT32), "a.f64": (0.1, GGUFValueType.FLOAT64),
    "a.yes": (True, GGUFValueType.BOOL), "a.text": ("gr\u00fc\u00dfe \U0001f680", GGUFValueType.STRING),
    "a.numbers": ([1, -2, 3], GGUFValueType.ARRAY), "a.words": (["", "\u0120a", "b"], GGUFValueType.ARRAY),
    "a.flags": ([True, False], GGUFValueType.ARRAY),
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    writer = GGUFWriter(tmp_path / "x.gguf", "qwen2")
    for key, (value, kind) in VALUES.items():
        writer.add_key_value(key, value, kind)
    writer.add_tensor("w", np.zeros((3, 5), np.float32))
    writer.add_tensor("v", np.zeros(7, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "x.gguf"


def test_every_kind_of_value_reads_as_it_was_written_and_words_are_counted(written):
    metadata = dict(read_header(written).metadata)
    assert metadata.pop("general.architecture") == "qwen2"
    assert metadata == {key: value for key, (value, _) in VALUES.items()} | {"a.words": ["", "", ""]}


def test_a_long_array_of_numbers_is_stepped_over(tmp_path):
    n = 1 << 20
    array = struct.pack("<IQQQ1sIIQ", 3, 0, 2, 1, b"k", 9, 0, n) + bytes(n)
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + array + struct.pack("<Q1sII", 1, b"l", 4, 7))
    assert read_header(tmp_path / "x.gguf").metadata == {"k": [], "l": 7}


def test_tensors_have_their_shape_in_numpys_order(written):
    header = read_header(written)
    assert header.tensors == (TensorEntry("w", (3, 5), 0), TensorEntry("v", (7,), 1))
    assert header.offsets == (0, 64)
    assert header.size_bytes == written.stat().st_size


def test_a_file_cut_anywhere_in_its_header_is_an_error_never_a_crash(written):
    content = written.read_bytes()
    end = (
        content.index(b"\x01\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00") + 12
    )  # in the last tensor's header
    for length in range(4, end):
        written.write_bytes(content[:length])
        with pytest.raises(ConfigError, match="damaged"):
            read_header(written)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        pytest.param(struct.pack("<IQQ", 1, 0, 0), "version 1", id="old-version"),
        pytest.param(struct.pack(">IQQ", 3, 0, 0), "version 50331648", id="big-endian"),
        pytest.param(struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "type 99", id="unknown-type"),
        pytest.param(struct.pack("<IQQQ", 3, 0, 1, 2**63), "past the end", id="endless-key"),
        pytest.param(struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**60), "in the middle",
            id="endless-array"),
        pytest.param(struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"w", 9), "9 dimensions", id="too-many-dimensions"),
        pytest.param(struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 9, "too deep",
            id="deep-nesting"),
    ],
)  # fmt: skip
def test_a_garbled_header_says_what_is_wrong(tmp_path, header, says):
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + header)
    with pytest.raises(ConfigError, match=says):
        read_header(tmp_path / "x.gguf")


def test_bytes_that_are_no_utf8_survive(tmp_path):
    name = struct.pack("<Q", 2) + b"\xff\xfe"
    (tmp_path / "x.gguf").write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + name + struct.pack("<IB", 0, 1)
    )
    (key,) = read_header(tmp_path / "x.gguf").metadata
    assert key.encode("utf-8", "surrogateescape") == b"\xff\xfe"


def test_a_file_that_ends_before_its_last_weight_is_found_out(written, tmp_path):
    whole = written.read_bytes()
    header = read_header(written)
    n_bytes = header.data_at + 64 + 7 * 2
    require_whole(written)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:n_bytes])
    require_whole(cut)
    cut.write_bytes(whole[: n_bytes - 1])
    with pytest.raises(ConfigError, match=f"{n_bytes - 1:,} of {n_bytes:,} bytes"):
        require_whole(cut)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("x.gguf", b"", "it is empty", id="empty"),
        pytest.param("x.gguf", b"GG", "starts with b'GG'", id="short"),
        pytest.param("x.gguf", b"some words", "starts with b'some'", id="text"),
        pytest.param("x.gguf", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull", id="pointer"),
        pytest.param("x.gguf", b"<!DOCTYPE html>", "a web page", id="page"),
        pytest.param("x.gguf", b"PK\x03\x04....", "a zip archive", id="zip"),
        pytest.param("model.safetensors", bytes(8), "convert_hf_to_gguf.py", id="safetensors"),
    ],
)
def test_what_is_no_gguf_file_is_called_what_it_is(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"is not a GGUF file.*{words}"):
        require_whole(tmp_path / name)
