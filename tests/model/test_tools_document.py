"""The loops of docs/tools.md and docs/responses.md, run as they stand there, with the model that ships."""

import re
from pathlib import Path

import pytest

from tests.page.stack import Site

pytestmark = pytest.mark.model

DOCUMENTS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["tools.md", "responses.md"])
def test_the_loop_prints_what_the_document_says(capsys, name):
    document = (DOCUMENTS / name).read_text(encoding="utf-8")
    loop = re.search(r"```python\n(.*?)```", document, re.DOTALL)[1]
    printed = re.search(r"```text\n(.*?)```", document, re.DOTALL)[1]
    with Site(model="builtin:tiny", n_ctx=2048) as site:
        names = {}
        exec(loop.replace("http://127.0.0.1:8000", site.url), names)
        names["client"].close()
    assert capsys.readouterr().out.endswith(printed)
