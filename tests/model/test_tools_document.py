"""The loop of docs/tools.md, run as it stands there, against a server with the model that ships."""

import re
from pathlib import Path

import pytest

from tests.page.stack import Site

pytestmark = pytest.mark.model

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")


def test_the_loop_prints_what_the_document_says(capsys):
    loop = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[1]
    printed = re.search(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)[1]
    with Site(model="builtin:tiny", n_ctx=2048) as site:
        exec(loop.replace("http://127.0.0.1:8000", site.url), {})
    assert capsys.readouterr().out.endswith(printed)
