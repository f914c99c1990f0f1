import hashlib
import os

import pytest

from cobali_ray.models.digest import model_digest


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_a_file_is_read_once_while_it_is_as_it_was(tmp_path, monkeypatch):
    path, known = tmp_path / "a.gguf", tmp_path / "known"
    path.write_bytes(b"one")
    assert model_digest(path, known) == sha(b"one")
    read = []
    whole = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: read.append(args) or whole(*args))
    assert model_digest(path, known) == sha(b"one")
    assert not read
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert model_digest(path, known) == sha(b"two")
    for note in known.iterdir():
        note.write_bytes(b"\xff no hash")
    assert model_digest(path, known) == sha(b"two")


def test_all_parts_of_a_model_count(tmp_path):
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for i, path in enumerate(parts):
        path.write_bytes(bytes([i]))
    (tmp_path / "n-00002-of-00002.gguf").write_bytes(b"of another")
    digest = model_digest(parts[0], tmp_path / "known")
    assert digest == sha((sha(b"\0") + sha(b"\1")).encode())
    parts[1].write_bytes(b"changed")
    os.utime(parts[1], ns=(1, 1))
    assert model_digest(parts[0], tmp_path / "known") != digest


@pytest.mark.parametrize("known", ["file", "file/below"])
def test_without_a_folder_it_is_computed_again(tmp_path, known):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "a.gguf").write_bytes(b"x")
    assert model_digest(tmp_path / "a.gguf", tmp_path / known) == sha(b"x")
