import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from cobali_ray.errors import BackendError, ConfigError
from cobali_ray.models.store import default_cache_dir, write_whole


def untouched(_part):
    pytest.fail("it was asked to write")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param(
            {"COBALI_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a/models"), id="own-variable-first"
        ),
        pytest.param({"XDG_CACHE_HOME": "/b"}, Path("/b/cobali_ray/models"), id="the-desktop's"),
        pytest.param({"COBALI_CACHE": ""}, Path.home() / ".cache/cobali_ray/models", id="empty-is-unset"),
    ],
)
def test_the_cache_lies_where_the_environment_says(environ, expected):
    assert default_cache_dir(environ) == expected


def test_a_file_appears_whole_under_its_name(tmp_path):
    target = tmp_path / "new" / "x.gguf"

    def fill(part):
        part.write_bytes(b"half")
        assert not target.exists(), "nobody sees half a file"
        part.write_bytes(b"whole")

    write_whole(target, 5, fill)
    assert target.read_bytes() == b"whole"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("fault", "raised", "says"),
    [
        pytest.param(
            OSError(errno.ENOSPC, "no space"), ConfigError, "needs 5 MB", id="disk-fills-up-meanwhile"
        ),
        pytest.param(OSError(errno.EIO, "bad disk"), ConfigError, "bad disk", id="disk-breaks"),
        pytest.param(BackendError("llama"), BackendError, "llama", id="not-the-disk"),
    ],
)
def test_a_failure_leaves_nothing_behind(tmp_path, fault, raised, says):
    def fill(part):
        part.write_bytes(b"half")
        raise fault

    with pytest.raises(raised, match=says):
        write_whole(tmp_path / "x.gguf", 5_000_000, fill)
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3_000_000))
    with pytest.raises(ConfigError, match=r"needs 500 MB in .*, which has 3 MB free") as caught:
        write_whole(tmp_path / "x.gguf", 500_000_000, untouched)
    assert caught.value.setting == "cache_dir"


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot write"):
        write_whole(tmp_path / "file" / "x.gguf", 1, untouched)
