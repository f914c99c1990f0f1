"""Write the table of rooms in ARCHITECTURE.md: `make reference`. A test compares.

A room is a package: what it is about is the first line of its docstring, and its weight is its lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
TABLE = re.compile(r"(?<=<!-- rooms -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
WITHOUT_DOCSTRING = {
    "cobali_ray/ui": "The live page: modules and style sheets, without what is vendored.",
    "tests": "The tests.",
}
SKIPPED = {"vendor", "node_modules"}
CODE = {".py", ".js", ".css", ".html"}


def main() -> None:
    """Write the table anew."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(), text), encoding="utf-8")


def table() -> str:
    """Return the table, with weights in hundreds of lines."""
    rows = "".join(f"| `{name}` | {round(n, -2):,} | {what} |\n" for name, n, what in rooms())
    return f"\n| room | lines | what it is |\n|---|---|---|\n{rows}\n"


def rooms() -> Iterator[tuple[str, int, str]]:
    """Yield each room with its lines, those of rooms inside it included, and what it is."""
    yield "cobali_ray", lines(ROOT / "cobali_ray"), "All that serves."
    for name in ("workloads/cobali_workloads", "tests"):
        yield name, lines(ROOT / name), about(ROOT / name)
    for path in sorted((ROOT / "cobali_ray").rglob("")):
        depth = len(path.relative_to(ROOT / "cobali_ray").parts)
        if (depth in {1, 2} and (path / "__init__.py").is_file()) or path.name == "ui":
            yield path.relative_to(ROOT / "cobali_ray").as_posix(), lines(path), about(path)


def about(path: Path) -> str:
    """Return the first line of a package's docstring."""
    if (name := path.relative_to(ROOT).as_posix()) in WITHOUT_DOCSTRING:
        return WITHOUT_DOCSTRING[name]
    text = (path / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]


def lines(path: Path) -> int:
    """Return the lines of code below a folder."""
    files = (file for file in path.rglob("*") if file.suffix in CODE and not SKIPPED.intersection(file.parts))
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


if __name__ == "__main__":
    main()
