"""axe, run in a page."""

from pathlib import Path

AXE = Path(__file__).parent / "vendor" / "axe-4.14.1.min.js"


def violations(page):
    """Return what axe finds wrong with a page as it is, and where."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(v["id"], [node["target"] for node in v["nodes"]]) for v in result["violations"]]
