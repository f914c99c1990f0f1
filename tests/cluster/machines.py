"""Machines of their own on this one: network namespaces on a bridge, and in each a node of Ray.

Links can be cut and machines killed. It needs Linux, root and `ip` (iproute2).
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
import yaml

from cobali_ray.actors.cluster import cluster_environment
from tests.chaos.devices import ASKED, N_TOKENS, Chain
from tests.waiting import wait_until

NET = "10.199.0"
URL = f"http://{NET}.1:8000"
"""Of a server on the first machine."""
START_S = 180
TRIES = 3
"""A raylet gives up where its agents start too slowly, which they do on a busy machine."""
BIN = Path(sys.executable).parent


def ready():
    """Say whether the server there takes requests."""
    with contextlib.suppress(httpx2.TransportError):
        return httpx2.get(f"{URL}/ready", timeout=10.0).status_code == 200


def story(client, begun=None):
    """Return a long answer of the model there, token by token; when it has begun, `begun` is called."""
    chain, asked = Chain(), {name: value for name, value in ASKED.items() if name != "ignore_eos"}
    for chunk in client.completions.create(
        model="tiny", prompt="Once", extra_body={"ignore_eos": True}, timeout=120, **asked
    ):
        chain.add(chunk.model_dump())
        if begun is not None and len(chain.tokens) >= N_TOKENS // 4:
            begun()
            begun = None
    return chain


def missing():
    """Say why there can be no such machines here; "" if there can."""
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"cobali-probe-{os.getpid()}"
    made = _ip("netns", "add", probe, check=False)
    _ip("netns", "del", probe, check=False)
    return made.stderr.strip() if made.returncode else ""


def _ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)


class Machines:
    """`n` machines 10.199.0.1, .2 and so on, the first with Ray's head; this process is 10.199.0.254."""

    def __init__(self, n, *, host="127.0.0.1", ray=True):
        self.n, self._host, self._ray = n, host, ray
        self._folder = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))
        self._token = secrets.token_hex(32)
        self._name = f"cobali-{os.getpid()}"
        self._starters = {}

    def __enter__(self):
        try:
            self._wire_up()
            for i in range(1, self.n + 1) if self._ray else ():
                self.start(i)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _space(self, i):
        return f"{self._name}-{i}"

    def _link(self, i):
        return f"cob{os.getpid() % 10000}e{i}"

    def _wire_up(self):
        switch = f"{self._name}-sw"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for i in range(self.n + 1):
            link, port = self._link(i), f"p{i}"
            _ip("link", "add", link, "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "br0", "up")
            if not i:
                _ip("addr", "add", f"{NET}.254/24", "dev", link)
                _ip("link", "set", link, "up")
                continue
            _ip("netns", "add", self._space(i))
            _ip("link", "set", link, "netns", self._space(i))
            _ip("-n", self._space(i), "addr", "add", f"{NET}.{i}/24", "dev", link)
            for name in ("lo", link):
                _ip("-n", self._space(i), "link", "set", name, "up")

    def address(self, i):
        return f"{NET}.{i}"

    def environment(self, i):
        """Return what the processes of a machine find in their environment."""
        folder = self._folder / f"front-{i}"
        folder.mkdir(exist_ok=True)
        known = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        path = f"{BIN}:{known.get('PATH', '')}"
        ours = cluster_environment(folder, host=self._host)
        return known | ours | {"PATH": path, "RAY_AUTH_TOKEN": self._token}

    def run(self, i, *words):
        """Run a command on a machine, and wait for it."""
        command = ["ip", "netns", "exec", self._space(i), *words]
        environment = self.environment(i)
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=START_S, check=False
        )

    def begin(self, i, log, *words):
        """Begin a command on a machine, which ends at the latest with the machine; return its process."""
        command = ["ip", "netns", "exec", self._space(i), *words]
        with log.open("ab") as out:
            return subprocess.Popen(command, env=self.environment(i), stdout=out, stderr=out)

    def start(self, i):
        """Start Ray on a machine, with resources by which actors can be put there."""
        where = (
            ["--head", "--port=6379", f"--temp-dir={self._folder}/ray", "--dashboard-host=127.0.0.1"]
            if i == 1
            else [f"--address={self.address(1)}:6379"]
        )
        resources = {f"machine-{i}": 1} | ({"engine": 1} if i > 1 else {})
        words = [
            *("ip", "netns", "exec", self._space(i), BIN / "ray", "start", "--block", "--num-cpus=4"),
            *("--disable-usage-stats", "--object-store-memory=100000000"),
            *(f"--node-ip-address={self.address(i)}", "--resources", json.dumps(resources), *where),
        ]
        log = self._folder / f"ray-start-{i}.log"
        for _ in range(TRIES):
            with log.open("w") as out:
                process = self._starters[i] = subprocess.Popen(
                    words, env=self.environment(i), stdout=out, stderr=out, start_new_session=True
                )
            with contextlib.suppress(AssertionError):
                wait_until(
                    lambda: process.poll() is not None or "Ray runtime started" in log.read_text(),  # noqa: B023
                    timeout_s=START_S,
                )
                if process.poll() is None:
                    return
            self.kill(i)
        raise RuntimeError(f"Ray did not start on machine {i}:\n{log.read_text()}")

    def deploy(self, config):
        """Deploy a Serve config, as `serve deploy` does on the head."""
        path = self._folder / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        done = self.run(1, BIN / "serve", "deploy", "--address", "http://127.0.0.1:8265", path)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def pids(self, i):
        return [int(pid) for pid in _ip("netns", "pids", self._space(i), check=False).stdout.split()]

    def kill(self, i):
        """Switch a machine off: everything on it ends at once."""

        def all_gone():
            pids = self.pids(i)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        wait_until(all_gone)
        if starter := self._starters.pop(i, None):
            starter.wait()

    def cut(self, i):
        """Pull the cable out of a machine."""
        _ip("-n", f"{self._name}-sw", "link", "set", f"p{i}", "down")

    def heal(self, i):
        _ip("-n", f"{self._name}-sw", "link", "set", f"p{i}", "up")

    def __exit__(self, *error):
        for i in range(1, self.n + 1):
            self.kill(i)
        _ip(
            "link", "del", self._link(0), check=False
        )  # at once; Linux takes its time with those of namespaces
        for name in (*(self._space(i) for i in range(1, self.n + 1)), f"{self._name}-sw"):
            _ip("netns", "del", name, check=False)
        if not os.environ.get("KEEP_LOGS"):
            shutil.rmtree(self._folder, ignore_errors=True)
