"""axe, run in a page."""

from pathlib import Path

AXE = Path(__file__).parent / "vendor" / "axe-4.14.1.min.js"
RUN = """async (rules) => {
    await new Promise(requestAnimationFrame);
    const changes = document.getAnimations().filter((one) => one instanceof CSSTransition);
    await Promise.allSettled(changes.map((one) => one.finished)); // the colours have changed
    const only = rules ? { runOnly: { type: "rule", values: rules } } : {};
    return axe.run(document, { resultTypes: ["violations"], ...only });
}"""
OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules whose answer is another in other colours."""


def violations(page, name=""):
    """Return what axe finds wrong with a page as it is, in light and in dark colours, and where."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = []
    for scheme, rules in (("light", None), ("dark", OF_COLOURS)):
        page.emulate_media(color_scheme=scheme)
        wrong = page.evaluate(RUN, rules)["violations"]
        found += [(name, scheme, one["id"], [node["target"] for node in one["nodes"]]) for one in wrong]
    return found
