"""The loop of docs/tools.md, run as it stands there against a server whose model knows tools."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")


@pytest.fixture
def url():
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.clients.teacher"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        yield server.stdout.readline().strip()
        server.stdin.close()


def test_the_loop_prints_what_the_document_says(url, capsys):
    loop = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[1]
    printed = re.search(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)[1]
    exec(loop.replace("http://127.0.0.1:8000", url), {})
    assert capsys.readouterr().out == printed
