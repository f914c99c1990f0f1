"""What names the files of cells on disk."""

from cobali_ray.backend.cells import TensorGroup


def test_files_are_found_again_whatever_a_class_is_called():
    assert repr(TensorGroup((b"ab",), 1, 34)) == "Group(words=(b'ab',), n_rows=1, width=34)"
