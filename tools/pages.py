"""A hook of MkDocs (`make docs`): the site has the tree of the repository, so a link works in both.

A page keeps its path (`docs/engines.md`, `README.md`); only its address loses the `docs/`. Files that a page
links to come along, and an entry of the nav may be a pattern.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FRONT = "README.md"
"""The page that the site opens with."""
ELSEWHERE = (
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "DECISIONS.md", "SECURITY.md"),
    *("dashboards/README.md", "training/README.md", "workloads/README.md"),
)
"""Pages outside docs/."""
ICON = "cobali_ray/ui/icon.svg"
LINK = re.compile(r"\]\(([^)#\s]+)")
CODE_IN_TABLE = re.compile(r"`[^`]*`")


def on_config(config: MkDocsConfig) -> None:
    """Replace each pattern in the nav by the pages that match it, sorted by name."""
    config.nav = _filled(config.nav)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Name every file by its path in the repository, and add the files from outside docs/."""
    docs = Path(config.docs_dir).relative_to(ROOT).as_posix()
    theme = [file for file in files if file.src_dir != config.docs_dir]
    own = [file.src_uri for file in files if file.src_dir == config.docs_dir]
    pages = [_file(f"{docs}/{name}", name, config) for name in own]
    pages += [
        _file(name, "index.md" if name == FRONT else name, config) for name in (FRONT, *ELSEWHERE, ICON)
    ]
    known = {page.src_uri for page in pages}
    linked = {name for page in pages if page.is_documentation_page() for name in _linked(page)}
    pages += [_file(name, name, config) for name in sorted(linked - known)]
    return Files([*theme, *pages])


def on_page_markdown(markdown: str, **_: object) -> str:
    """Remove the backslash before a bar in a table's code: GitHub needs it, and Python-Markdown shows it."""
    return "\n".join(
        CODE_IN_TABLE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in markdown.split("\n")
    )


def _filled(nav: list | dict | str) -> list:
    if isinstance(nav, list):
        return [entry for one in nav for entry in _filled(one)]
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
