"""Downloads from a stand-in hub on the loopback that speaks the little that huggingface_hub asks for."""

import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from cobali_ray.errors import ConfigError, ModelNotFoundError
from cobali_ray.models.hub import cached_file, choose_file, download
from cobali_ray.models.reference import HubReference, HubRepository
from cobali_ray.models.registry import resolve
from cobali_ray.ports import free_port

COMMIT = "c0ffee" * 6 + "abcd"
CONTENT = b"GGUF\x03" + bytes(19) + bytes(range(256)) * 512  # a model without tensors
ETAG = '"5a105e8b9d40e1329780d62ea2265d8a"'
FILE = HubReference("owner/repo", "folder/m.gguf")
PARTS = tuple(f"m-Q8_0-{i:05d}-of-00002.gguf" for i in (1, 2))


class StandInHub(BaseHTTPRequestHandler):
    """Serves one file at revisions main and v1; faults go by the repository or the server's fields."""

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        hub = self.server
        if self.path == "/api/agent-harnesses":  # huggingface_hub wants to know by what it is used
            return self.refuse(404)
        hub.asked.append((self.command, self.path))
        if hub.status is not None:
            return self.refuse(hub.status)
        if self.path.startswith("/api/models/"):
            return self.tell()
        _, owner, repo, resolve, revision, *path = self.path.split("/")
        if repo == "gated":
            return self.refuse(403, "GatedRepo")
        if (owner, repo, resolve) != ("owner", "repo", "resolve"):
            return self.refuse(401, "RepoNotFound")
        if revision not in {"main", "v1", COMMIT}:
            return self.refuse(404, "RevisionNotFound")
        if "/".join(path) not in {FILE.filename, *PARTS}:
            return self.refuse(404, "EntryNotFound")
        self.send_response(200)
        if hub.is_a_hub:
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", ETAG)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(CONTENT[: hub.n_served])
        return None

    def tell(self):
        if not self.path.startswith("/api/models/owner/repo"):
            return self.refuse(404, "RepoNotFound")
        files = [{"rfilename": name} for name in self.server.listed]
        body = json.dumps({"id": "owner/repo", "siblings": files}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def refuse(self, status, code=""):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub on loopback, which huggingface_hub takes for its own, with an empty cache."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandInHub)
    server.asked, server.status, server.is_a_hub, server.n_served = [], None, True, len(CONTENT)
    server.listed = ["README.md", FILE.filename, "m-Q4_K_M.gguf", *PARTS, "mmproj-m-f16.gguf"]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    use_hub(monkeypatch, server.server_port)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def use_hub(monkeypatch, port, timeout_s=60.0):
    """Have huggingface_hub ask a hub at this port."""
    endpoint = f"http://127.0.0.1:{port}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
    for name, value in (("ENDPOINT", endpoint), ("HUGGINGFACE_CO_URL_TEMPLATE", template)):
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr("cobali_ray.models.hub.PROBE_TIMEOUT_S", timeout_s)


def test_a_file_is_fetched_once_and_progress_is_told(hub):
    heard = []
    path = download(FILE, lambda what, done: heard.append((what, done)))
    assert path.read_bytes() == CONTENT
    assert heard[-1] == ("downloading folder/m.gguf", 1.0)
    assert download(FILE) == path
    assert [method for method, _ in hub.asked].count("GET") == 1


def test_the_command_fetches_before_anything_is_served(hub, tmp_path):
    # a process of its own, because huggingface_hub reads the environment when it is imported
    command = [
        Path(sys.executable).with_name("cobali"),
        "models",
        "pull",
        f"hf://owner/repo/{FILE.filename}@v1",
    ]
    environ = os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path)}
    fetched = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    path = Path(fetched.stdout.removesuffix("\n"))
    assert path.is_relative_to(tmp_path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("revision", ["v1", COMMIT])
def test_a_revision_is_asked_for(hub, revision):
    assert download(HubReference(FILE.repo_id, FILE.filename, revision)).read_bytes() == CONTENT
    assert {path for _, path in hub.asked} == {f"/owner/repo/resolve/{revision}/folder/m.gguf"}


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        pytest.param(
            HubReference("owner/nobody", "m.gguf"), "no repository 'owner/nobody'.*HF_TOKEN", id="repository"
        ),
        pytest.param(HubReference("owner/gated", "m.gguf"), "gated: accept its terms", id="gated"),
        pytest.param(HubReference("owner/repo", "m.gguf", "v9"), "no revision 'v9'", id="revision"),
        pytest.param(
            HubReference("owner/repo", "n.gguf"), r"no file 'n\.gguf': its files are listed", id="file"
        ),
        pytest.param(HubReference("owner/repo", "n.gguf", "v1"), "at revision 'v1'", id="file-at-revision"),
    ],
)
def test_the_error_names_what_is_at_fault(hub, reference, says):
    with pytest.raises(ModelNotFoundError, match=says) as caught:
        download(reference)
    assert caught.value.setting == "model"
    assert len(hub.asked) == 1, "what is known after one question is not asked again"


@pytest.mark.usefixtures("hub")
def test_a_name_the_hub_could_not_have_is_refused():
    with pytest.raises(ConfigError, match="--"):
        download(HubReference("owner/re--po", "m.gguf"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"status": 503}, "returned status 503; try again later", id="hub-is-down"),
        pytest.param({"status": 418}, "refused .* status 418", id="hub-refuses"),
        pytest.param({"is_a_hub": False}, "is not a model hub; check HF_ENDPOINT", id="no-hub"),
    ],
)
def test_a_hub_that_answers_badly_is_asked_once(hub, changes, says):
    vars(hub).update(changes)
    with pytest.raises(ModelNotFoundError, match=says):
        download(FILE)
    assert len(hub.asked) == 1, "huggingface_hub alone would ask for 25 s"


def test_without_a_network_the_copy_in_the_cache_serves(hub):
    path = download(FILE)
    hub.status = 503
    assert download(FILE) == path


@pytest.mark.usefixtures("hub")
def test_a_hub_that_cannot_be_reached_or_never_answers_is_given_up(monkeypatch):
    use_hub(monkeypatch, free_port())
    with pytest.raises(ModelNotFoundError, match=r"cannot be reached, .*; no copy is in the cache either"):
        download(FILE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_hub(monkeypatch, silent.getsockname()[1], timeout_s=0.05)
        with pytest.raises(ModelNotFoundError, match="cannot be reached"):
            download(FILE)


@pytest.mark.usefixtures("hub")
def test_a_cache_that_cannot_be_written_is_not_called_a_network_fault(monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be saved") as caught:
        download(FILE)
    assert caught.value.setting == "HF_HOME"


def choose(quant=None, repo="owner/repo", revision=None):
    return choose_file(HubRepository(repo, quant, revision)).filename


def test_a_quant_picks_the_file_of_a_repository(hub):
    assert choose("q4_k_m") == "m-Q4_K_M.gguf"
    assert choose("Q8_0") == PARTS[0]
    assert choose() == "m-Q4_K_M.gguf", "the usual quant"
    hub.listed = [FILE.filename]
    assert choose() == FILE.filename, "the only one"
    with pytest.raises(ModelNotFoundError, match=r"has no Q9_9; it has folder/m\.gguf"):
        choose("Q9_9")
    hub.listed = ["README.md", "mmproj-m-f16.gguf"]
    with pytest.raises(ModelNotFoundError, match="has no GGUF model file"):
        choose()
    with pytest.raises(ModelNotFoundError, match="no repository 'owner/nobody'"):
        choose(repo="owner/nobody")


def test_without_a_network_the_cache_tells_which_files_there_are(hub, tmp_path):
    hub.status = 503
    with pytest.raises(ModelNotFoundError, match="try again later; no copy is in the cache either"):
        choose()
    hub.status = None
    download(FILE)
    hub.status = 503
    assert choose() == FILE.filename
    refs = tmp_path / "models--owner--repo/refs"
    (refs / "v1").write_text((refs / "main").read_text())
    assert choose() == choose(revision="main") == choose(revision="v1") == FILE.filename, (
        "all mean one commit"
    )
    with pytest.raises(ModelNotFoundError, match="no copy is in the cache"):
        choose(revision="v2")


def test_all_parts_of_a_split_model_are_fetched(monkeypatch, tmp_path):
    asked = []

    def download(reference, **_):
        asked.append(reference.filename)
        (tmp_path / reference.filename).write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(16))
        return tmp_path / reference.filename

    monkeypatch.setattr("cobali_ray.models.registry.download", download)
    assert resolve(f"hf://owner/repo/{PARTS[1]}").name == PARTS[0]
    assert asked == list(PARTS)


def test_a_split_model_of_which_a_part_is_missing_is_not_here(monkeypatch, tmp_path):
    here = {PARTS[0]}
    cached = lambda _, name, **__: str(tmp_path / name) if name in here else None  # noqa: E731
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    first = HubReference("owner/repo", PARTS[0])
    assert cached_file(first) is None
    here.add(PARTS[1])
    assert cached_file(first) == tmp_path / PARTS[0]


def test_a_full_disk_is_found_out_before_the_download(monkeypatch, hub):
    from huggingface_hub import file_download

    monkeypatch.setattr(file_download.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with (
        warnings.catch_warnings(action="default"),
        pytest.raises(ConfigError, match=r"no room .*Free some space, or set it to") as caught,
    ):
        download(FILE)
    assert caught.value.setting == "HF_HOME"
    assert "GET" not in [method for method, _ in hub.asked]
