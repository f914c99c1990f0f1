"""A real Prometheus and a real Alertmanager on loopback, with the files of dashboards/ and short times."""

from __future__ import annotations

import contextlib
import http.server
import json
import subprocess
import threading
from functools import partial
from pathlib import Path

import httpx2
import yaml

from cobali_ray.ports import free_port
from tools.monitoring import find

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
INTERVAL = "250ms"
PROGRAMS = {
    "prometheus": ("--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"),
    "prometheus-alertmanager": (
        "--config.file=alertmanager.yml",
        "--storage.path=alerts",
        "--cluster.listen-address=",
    ),
}


def runs(program):
    """Say whether a program is here and starts."""
    path = find(program)
    command = [path, "--version"]
    return path is not None and not subprocess.run(command, capture_output=True, check=False).returncode


class Inbox:
    """A webhook receiver: what Alertmanager said last of each alert."""

    def __init__(self):
        inbox = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                for alert in body["alerts"]:
                    inbox.alerts.append((alert["status"], alert["labels"], alert["annotations"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.alerts = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def of(self, status, name):
        """Return labels and annotations of the alerts with this name and status, oldest first."""
        said = [alert for alert in self.alerts if alert[0] == status]
        return [(labels, notes) for _, labels, notes in said if labels["alertname"] == name]


class Prometheus:
    """What a Grafana would ask."""

    def __init__(self, url):
        self.http = httpx2.AsyncClient(base_url=f"{url}/api/v1", timeout=60.0)

    async def range(self, query, start_s, end_s):
        """Return the series of a range query; ValueError with Prometheus's words if it does not take it."""
        data = {"query": query, "start": start_s, "end": end_s, "step": "1s"}
        return self._result(await self.http.post("/query_range", data=data))["result"]

    async def values(self, label, selector):
        return self._result(await self.http.get(f"/label/{label}/values", params={"match[]": selector}))

    @staticmethod
    def _result(response):
        body = response.json()
        if body["status"] != "success":
            raise ValueError(body["error"])
        return body["data"]


@contextlib.contextmanager
def running(command, folder, log):
    with subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


async def is_ready(port):
    """Say whether a Prometheus or an Alertmanager takes questions."""
    async with httpx2.AsyncClient() as http:
        try:
            return (await http.get(f"http://127.0.0.1:{port}/-/ready")).status_code == 200
        except httpx2.TransportError:
            return False


def write_configs(folder, target, path, alertmanager_port, inbox_url):
    """Copy the three files, changing where to look and how long to wait, and nothing else."""
    scrape = yaml.safe_load((DASHBOARDS / "prometheus.yml").read_text())
    scrape["global"] = dict.fromkeys(scrape["global"], INTERVAL)
    (job,) = scrape["scrape_configs"]
    job["metrics_path"], job["static_configs"] = path, [{"targets": [target]}]
    (manager,) = scrape["alerting"]["alertmanagers"]
    manager["static_configs"] = [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]
    rules = yaml.safe_load((DASHBOARDS / "rules.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"] if "for" in rule):
        rule["for"] = "1s"
    manage = yaml.safe_load((DASHBOARDS / "alertmanager.yml").read_text())
    manage["route"] |= {"group_wait": "0s", "group_interval": INTERVAL}
    manage["receivers"][0]["webhook_configs"] = [{"url": inbox_url}]
    for name, content in (("prometheus.yml", scrape), ("rules.yml", rules), ("alertmanager.yml", manage)):
        (folder / name).write_text(yaml.safe_dump(content))


@contextlib.asynccontextmanager
async def monitors(folder, target, path, until):
    """Run both beside an inbox; stop them, and only them, in the end."""
    inbox, ports = Inbox(), (free_port(), free_port())
    write_configs(folder, target, path, ports[1], inbox.url)
    commands = [[find(program), *options] for program, options in PROGRAMS.items()]
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(inbox.close)
        processes = []
        for command, port in zip(commands, ports, strict=True):
            log = stack.enter_context((folder / f"{port}.log").open("wb"))
            listen = f"--web.listen-address=127.0.0.1:{port}"
            processes.append(stack.enter_context(running([*command, listen], folder, log)))
        prometheus = Prometheus(f"http://127.0.0.1:{ports[0]}")
        stack.push_async_callback(prometheus.http.aclose)
        for port in ports:
            await until(partial(is_ready, port))
        yield prometheus, inbox
        assert [process.poll() for process in processes] == [None, None], "neither died meanwhile"
