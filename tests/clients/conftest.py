"""A server for every client library's tests: the real one over a stand-in for the model, or that of `--url`.

These run in environments of their own (`make clients`), without cobali_ray and without the other libraries.
"""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "clients.md"
DEGREES = {"Oslo": 4, "Rome": 21, "Lima": 18}

for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
    os.environ.pop(name, None)


def pytest_addoption(parser):
    parser.addoption(
        "--url",
        default=os.environ.get("COBALI_CLIENTS_URL"),
        help="a running server's address, such as http://127.0.0.1:8000, in place of the scripted one",
    )
    parser.addoption("--program", help="the one of test_programs.py to test, such as codex")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--url"):
        skip = pytest.mark.skip(reason="needs the stand-in for the model")
        for item in items:
            if item.get_closest_marker("scripted"):
                item.add_marker(skip)


@contextmanager
def serving(config, *options):
    """Serve while the `with` lasts, unless somebody else does; give the address."""
    if url := config.getoption("--url"):
        yield url.rstrip("/")
        return
    command = [ROOT / ".venv" / "bin" / "python", "-m", "tests.clients.teacher", *options]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        url = one.stdout.readline().strip()
        assert url, "the server did not start"
        yield url
        one.stdin.close()


@pytest.fixture(scope="session")
def server(request):
    """The address of the server."""
    with serving(request.config) as url:
        yield url


@pytest.fixture(scope="session")
def lenient_server(request):
    """The address of a server that only says which fields it does not know, as it is unless set otherwise."""
    with serving(request.config, "--lenient") as url:
        yield url


@pytest.fixture(scope="session")
def url(server):
    """What clients call the base URL."""
    return f"{server}/v1"


@pytest.fixture(scope="session")
def model(url):
    """The name of the model."""
    with urlopen(f"{url}/models") as answer:
        return json.load(answer)["data"][0]["id"]


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def one_loop(anyio_backend):
    """Keep the loop: clients that nobody closes do so themselves, at any time, on the loop they know."""
    yield  # noqa: PT022 - until here


@pytest.fixture
def weather():
    """A tool as users write one, and what it was asked."""

    def get_weather(city: str) -> str:
        """Return the weather in a city."""
        get_weather.asked.append(city)
        return f"{DEGREES[city]} degrees and sunny in {city}"

    get_weather.asked = []
    return get_weather


@pytest.fixture
def run_example(server, model):
    """Run the example that docs/clients.md has under a title, and return what it prints."""

    def run(title):
        text = DOCUMENT.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        code = code.replace("http://127.0.0.1:8000", server).replace('tiny"', f'{model}"')
        command = [sys.executable, "-W", "ignore", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout

    return run
