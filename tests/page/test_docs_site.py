"""The documents as a site: it builds without a warning, fetches nothing and can be searched offline."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough  # it takes half a minute; tests/unit/test_docs.py looks at all links
ROOT = Path(__file__).parents[2]
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
ELSEWHERE = re.compile(r"(?:https?:)?//")
NEVER_NEEDED = re.compile(r"https://unpkg\.com/(mermaid|resize-observer-polyfill)\b")
"""What the theme would fetch for a Mermaid diagram, of which there are none, or for an old browser."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


class Fetches(HTMLParser):
    """Collects what a browser fetches for a page by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        url = dict(attrs).get(FETCHED.get(tag))
        if url:
            self.found.append(url)


def test_no_page_fetches_from_another_host(built):
    pages = list(built.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        text, fetches = page.read_text(encoding="utf-8"), Fetches()
        fetches.feed(text)
        assert fetches.found
        assert [url for url in fetches.found if ELSEWHERE.match(url)] == [], page
        assert 'class="mermaid"' not in text
    for style in built.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import\s)[\"']?([^\"')\s]+)", style.read_text(encoding="utf-8"))
        assert [url for url in urls if ELSEWHERE.match(url)] == [], style
    for script in built.rglob("*.js"):
        rest = NEVER_NEEDED.sub("", script.read_text(encoding="utf-8"))
        assert not re.search(r"//(unpkg|cdn|fonts)\b", rest), script


def test_the_site_has_the_roots_pages_the_reports_and_the_reference(built):
    front = (built / "index.html").read_text(encoding="utf-8")
    assert 'href="ARCHITECTURE.html"' in front
    assert (built / "DECISIONS.html").exists()
    for report in (ROOT / "docs" / "benchmarks").glob("*.md"):
        assert f'href="benchmarks/{report.stem}.html"' in front
    reference = (built / "reference" / "core.html").read_text(encoding="utf-8")
    assert 'id="cobali_ray.core.scheduler.Scheduler.handle"' in reference
    formats = (built / "tool-formats.html").read_text(encoding="utf-8")
    assert "&lt;|START_ACTION|&gt;" in formats, "without the backslashes of GitHub's tables"


def test_a_page_opened_as_a_file_can_be_searched(built, browser):
    page, asked = browser.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((built / "settings.html").as_uri())
    page.get_by_role("textbox", name="Search").fill("retry-after")
    page.locator(".md-search-result__item").first.wait_for()
    assert page.locator(".md-search-result__link[href*='errors.html']").count()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
    page.close()
