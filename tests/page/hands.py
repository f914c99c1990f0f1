"""What a visitor does on the playground."""

IDLE = "() => fetch('health').then((r) => r.json()).then((h) => h.engine.n_running === 0)"
"""Holds in a page once the engine runs nothing; to be given to `until`."""


def until(page, holds):
    """Wait for what a page promises to become true; Playwright's own wait takes the promise for the truth."""
    page.evaluate(f"""async () => {{
        while (!(await ({holds})())) await new Promise((resolve) => setTimeout(resolve, 50));
    }}""")


def say(page, text, **settings):
    for name, value in settings.items():
        page.locator(f"[name={name}]").fill(str(value))
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def compare(page, n, **settings):
    page.get_by_role("button", name="Compare").click()
    page.locator(".streams input").fill(str(n))
    say(page, "the same to all", **settings)
