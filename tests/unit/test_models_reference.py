from pathlib import Path

import pytest

from cobali_ray.errors import ConfigError, ModelNotFoundError
from cobali_ray.models.ggufmeta import require_gguf
from cobali_ray.models.reference import (
    BuiltinReference,
    HubReference,
    HubRepository,
    NameReference,
    PathReference,
    parse_reference,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("model.gguf", PathReference("model.gguf"), id="relative-path"),
        pytest.param("/data/a b.gguf", PathReference("/data/a b.gguf"), id="absolute-path"),
        pytest.param("./owner/repo", PathReference("./owner/repo"), id="path-that-says-so"),
        pytest.param("owner/repo", NameReference("owner/repo"), id="name-with-a-folder"),
        pytest.param("qwen2.5:0.5b", NameReference("qwen2.5:0.5b"), id="name"),
        pytest.param("ollama://a/b:c", NameReference("a/b:c", "ollama"), id="name-of-ollama"),
        pytest.param("lmstudio://o/r/m.gguf", NameReference("o/r/m.gguf", "lmstudio"), id="of-lm-studio"),
        pytest.param("hf://o/r", HubRepository("o/r"), id="hub-repository"),
        pytest.param("hf://o/r:q4_k_m", HubRepository("o/r", "q4_k_m"), id="hub-quant"),
        pytest.param("hf://o/r:UD-Q4_K_XL@v1", HubRepository("o/r", "UD-Q4_K_XL", "v1"), id="hub-all"),
        pytest.param("hf://o/r/m.gguf", HubReference("o/r", "m.gguf"), id="hub"),
        pytest.param("hf://o/r/q4/m.gguf", HubReference("o/r", "q4/m.gguf"), id="hub-folder"),
        pytest.param("hf://o/r/m.gguf@v1.0", HubReference("o/r", "m.gguf", "v1.0"), id="hub-revision"),
        pytest.param("hf://o/r/m.gguf@refs/pr/3", HubReference("o/r", "m.gguf", "refs/pr/3"), id="hub-ref"),
        pytest.param("hf://o/r@v1/d/m.gguf", HubReference("o/r", "d/m.gguf", "v1"), id="hub-early-revision"),
        pytest.param("hf://models/o/r/m.gguf", HubReference("o/r", "m.gguf"), id="hub-kind-spelled-out"),
        pytest.param("builtin:tiny", BuiltinReference("tiny"), id="builtin"),
        pytest.param("builtin:a-0.5b:q4_0", BuiltinReference("a-0.5b", "Q4_0"), id="builtin-quant-any-case"),
    ],
)
def test_a_reference_parses(text, expected):
    assert parse_reference(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("  ", "is empty", id="blank"),
        pytest.param("hf://", "hf://owner/repo/file.gguf", id="hub-nothing"),
        pytest.param("hf://o", "hf://owner/repo/file.gguf", id="hub-no-repository"),
        pytest.param("hf://o/r:", "hf://owner/repo", id="hub-empty-quant"),
        pytest.param("ollama://", "names no model", id="no-name"),
        pytest.param("hf://o/r/model.safetensors", "hf://owner/repo/file.gguf", id="hub-other-format"),
        pytest.param("hf://o/r/m.gguf@", "hf://owner/repo/file.gguf", id="hub-empty-revision"),
        pytest.param("hf://o/r@v1/m.gguf@v2", "hf://owner/repo/file.gguf", id="hub-two-revisions"),
        pytest.param("hf://o/r/../m.gguf", "inside the repository", id="hub-leaves-the-repository"),
        pytest.param("hf://datasets/o/r/m.gguf", "not in a model repository", id="hub-dataset"),
        pytest.param("builtin:", "builtin:NAME", id="builtin-nothing"),
        pytest.param("builtin:a:b:c", "builtin:NAME", id="builtin-too-much"),
        pytest.param("https://example.org/m.gguf", "a kind of address", id="web-address"),
    ],
)
def test_what_is_no_reference_is_refused_by_name_of_the_setting(text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        parse_reference(text)
    assert caught.value.setting == "model"
    assert not isinstance(caught.value, ModelNotFoundError), "unreadable is not the same as absent"


@pytest.mark.parametrize(
    "text", ["hf://o/r/d/m.gguf@v1", "hf://o/r/m.gguf", "hf://o/r:Q4_0@v1", "ollama://a:b"]
)
def test_a_hub_reference_prints_as_it_was_written(text):
    assert str(parse_reference(text)) == text


def test_a_missing_file_says_what_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=rf"'absent\.gguf' \(looked for {tmp_path}/absent\.gguf\);"):
        require_gguf(Path("absent.gguf"))
    with pytest.raises(ModelNotFoundError, match=rf"there is no file '{tmp_path}/absent\.gguf';"):
        require_gguf(tmp_path / "absent.gguf")


def test_a_directory_says_which_files_it_has(tmp_path):
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"directory; name a file in it \(one\.gguf\)"):
        require_gguf(tmp_path)
