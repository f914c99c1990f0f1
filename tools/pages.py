"""A hook of MkDocs (`make docs`): the site has the tree of the repository, so a link works in both.

A page keeps its path (`docs/engines.md`, `README.md`); only its address loses the `docs/`. Files that a page
links to come along, and an entry of the nav may be a pattern.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from cobali_ray import __version__

ROOT = Path(__file__).resolve().parent.parent
FRONT = "README.md"
"""The page that the site opens with."""
ELSEWHERE = (
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "DECISIONS.md", "SECURITY.md"),
    *("dashboards/README.md", "training/README.md", "workloads/README.md"),
)
"""Pages outside docs/."""
ICON = "cobali_ray/ui/icon.svg"
TYPEFACE = "cobali_ray/ui/vendor/inter-5.3.0.woff2"
"""The live page's, which site.css names."""
FIRST_PART = re.compile(r"^(# .+?\n)\n(.+?)(?=^## )", re.DOTALL | re.MULTILINE)
BUTTONS = (
    ("The first five minutes", "docs/tour.md", ".md-button--primary"),
    ("Install", "docs/install.md", ""),
    ("Settings", "docs/settings.md", ""),
)
"""Of the front page: what they say, and where they lead."""
LINK = re.compile(r"\]\(([^)#\s]+)")
CODE_IN_TABLE = re.compile(r"`[^`]*`")


def on_config(config: MkDocsConfig) -> None:
    """Replace each pattern in the nav by the pages that match it, sorted by name, and name the version."""
    config.nav = _filled(config.nav)
    config.copyright = f"Version {__version__}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Name every file by its path in the repository, and add the files from outside docs/."""
    docs = Path(config.docs_dir).relative_to(ROOT).as_posix()
    theme = [file for file in files if file.src_dir != config.docs_dir]
    own = [file.src_uri for file in files if file.src_dir == config.docs_dir]
    pages = [_file(f"{docs}/{name}", name, config) for name in own]
    pages += [
        _file(name, "index.md" if name == FRONT else name, config)
        for name in (FRONT, *ELSEWHERE, ICON, TYPEFACE)
    ]
    present = {page.src_uri for page in pages}
    linked = {name for page in pages if page.is_documentation_page() for name in _linked(page)}
    pages += [_file(name, name, config) for name in sorted(linked - present)]
    return Files([*theme, *pages])


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Make the front page's first part a title with buttons, and mend code in tables.

    A bar in a table's code has a backslash, which GitHub needs and Python-Markdown shows.
    """
    if page.file.src_uri == FRONT:
        page.meta["hide"] = ["navigation", "toc"]
        links = " ".join(f"[{text}]({target}){{ .md-button {kind} }}" for text, target, kind in BUTTONS)
        markdown = FIRST_PART.sub(
            lambda part: f'<div class="front" markdown>\n\n{part[1]}\n{_with(part[2], links)}\n</div>\n\n',
            markdown,
            count=1,
        )
    return "\n".join(
        CODE_IN_TABLE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in markdown.split("\n")
    )


def _with(text: str, links: str) -> str:
    """Return the front page's first part with the links between its first paragraph and its picture."""
    lead, rest = text.split("\n\n", 1)
    return f"{lead}\n\n{links}\n\n{rest}"


def _filled(nav: list | dict | str) -> list:
    if isinstance(nav, list):
        return [entry for item in nav for entry in _filled(item)]
    if isinstance(nav, dict):
        return [{title: below if isinstance(below, str) else _filled(below)} for title, below in nav.items()]
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(nav))


def _file(name: str, address: str, config: MkDocsConfig) -> File:
    dest_uri = File(address, "", "", config.use_directory_urls).dest_uri
    return File(name, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=dest_uri)


def _linked(page: File) -> set[str]:
    """Return the files of the repository that a page links to."""
    names = set()
    for link in LINK.findall(page.content_string):
        path = (ROOT / page.src_uri).parent.joinpath(link).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            names.add(path.relative_to(ROOT).as_posix())
    return names
