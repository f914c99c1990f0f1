"""One browser per file, a page per test that fails on any error in its console."""

import shutil

import pytest
from stack import Site

LATE = "503 (Service Unavailable)"
"""What `/debug/ticks` answers while an engine is slow to say that it lives; the page asks again."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

WAIT_MS = 20_000
"""For what shows by itself; most of it within a second, on a busy machine within ten."""


@pytest.fixture(scope="module")  # while it lives, this thread has a running event loop, which others must not
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: `make browser` installs it")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site():
    with Site() as site:
        yield site


@pytest.fixture(scope="module")
def tiny():
    """A site with the built-in model."""
    with Site(model="builtin:tiny", n_threads=1) as site:
        yield site


@pytest.fixture(scope="module")
def of(browser, site):
    """Evaluate a function of a module's exports, and an argument."""
    page = browser.new_page()
    page.goto(f"{site.url}/ui/icon.svg")  # of the same origin, and with nothing going on

    def evaluate(module, function, arg=None):
        load = "([url, arg]) => import(url).then((module) => (%s)(module, arg))"
        return page.evaluate(load % function, [f"{site.url}/ui/{module}", arg])

    yield evaluate
    page.close()


@pytest.fixture
def make_page(browser):
    """Open pages of a site. In the end none may have complained or asked another host."""
    contexts, trouble = [], []

    def make(site, view, *, allow=(), **options):
        options = {"viewport": {"width": 1440, "height": 1000}, "reduced_motion": "reduce"} | options
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(WAIT_MS)

        def complain(text):
            expected = (*allow, LATE, *(["status of 500"] if site.ends else []))
            if not any(word in text for word in expected):
                trouble.append(text)

        page.on("console", lambda m: m.type in {"error", "warning"} and complain(f"{m.text} {m.location}"))
        page.on("pageerror", lambda error: complain(f"{error} {error.stack}"))
        page.on("request", lambda r: r.url.startswith(site.url) or complain(f"asked {r.url}"))
        page.goto(f"{site.url}/#{view}")
        return page

    yield make
    for context in contexts:
        context.close()
    assert not trouble


def pytest_collection_modifyitems(config, items):
    """Give a browser's test that lost a race with a busy machine two more tries; the summary counts them."""
    if not config.pluginmanager.hasplugin("rerunfailures"):  # `make flaky` counts what fails the first time
        return
    for item in items:
        if "make_page" in item.fixturenames or "of" in item.fixturenames:
            item.add_marker(pytest.mark.flaky(reruns=2))
