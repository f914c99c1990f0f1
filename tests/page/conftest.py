"""One browser for all files, a page per test that fails on any error in its console."""

import shutil
from contextlib import ExitStack, contextmanager

import pytest
from stack import Site

LATE = "503 (Service Unavailable)"
"""What `/debug/ticks` answers while an engine is slow to say that it lives; the page asks again."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox"]
BLANK = "about:blank"
OPTIONS = {"viewport": {"width": 1440, "height": 1000}, "reduced_motion": "reduce"}

WAIT_MS = 60_000
"""For what shows by itself; most of it within a second, on a very busy machine within a minute."""
BROWSER, PAGES, OPEN = pytest.StashKey(), pytest.StashKey(), pytest.StashKey()


@pytest.fixture(scope="module")
def browser(pytestconfig):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: `make browser` installs it")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)

    if OPEN not in pytestconfig.stash:
        with ExitStack() as stack:
            chromium = stack.enter_context(sync_playwright()).chromium
            browser = chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            stack.callback(browser.close)
            pytestconfig.stash[BROWSER], pytestconfig.stash[PAGES] = browser, Pages(browser)
            pytestconfig.stash[OPEN] = stack.pop_all()
    return pytestconfig.stash[BROWSER]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Close the browser before a test that has none: while it lives, this thread has a running event loop."""
    result = yield
    if OPEN in item.config.stash and (nextitem is None or "browser" not in nextitem.fixturenames):
        item.config.stash[OPEN].close()
        del item.config.stash[OPEN]
    return result


@pytest.fixture(scope="session")
def site():
    with Site() as site:
        yield site


@pytest.fixture(scope="session")
def tiny():
    """A site with the built-in model."""
    with Site(model="builtin:tiny", n_threads=1) as site:
        yield site


class Pages:
    """Pages that tests have one after the other: a new one takes three times as long to show anything."""

    def __init__(self, browser):
        self._browser, self._free = browser, {}

    @contextmanager
    def one(self, origin, viewport=OPTIONS["viewport"], **options):
        """Lend a page that is as if it were new, in a context with these options that no other page has."""
        free = self._free.setdefault(tuple(sorted(options.items())), [])
        page = free.pop() if free else self._browser.new_context(**OPTIONS | options).new_page()
        page.set_viewport_size(viewport)
        yield page
        for other in page.context.pages:
            if other != page:
                other.close()
        forget(page, origin)
        free.append(page)


def forget(page, origin):
    """Leave a page as if it were new."""
    page.unroute_all(behavior="ignoreErrors")
    page.evaluate("() => { try { sessionStorage.clear(); } catch {} }")
    page.goto(BLANK)
    page.context.clear_permissions()
    session = page.context.new_cdp_session(page)
    session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    session.detach()
    page.emulate_media(color_scheme="light")


@pytest.fixture(scope="session")
def pages(pytestconfig):
    """Return what lends pages of the browser, once there is one."""
    return lambda: pytestconfig.stash[PAGES]


@pytest.fixture(scope="module")
def of(browser, site, pages):
    """Evaluate a function of a module's exports, and an argument."""
    with pages().one(site.url) as page:
        page.goto(f"{site.url}/ui/icon.svg")  # of the same origin, and with nothing going on

        def evaluate(module, function, arg=None):
            load = "([url, arg]) => import(url).then((module) => (%s)(module, arg))"
            return page.evaluate(load % function, [f"{site.url}/ui/{module}", arg])

        yield evaluate


@pytest.fixture
def make_page(browser, pages):
    """Open pages of a site. In the end none may have complained or asked another host."""
    trouble = []

    def make(site, view, *, allow=(), **options):
        page = ends.enter_context(pages().one(site.url, **options))
        page.set_default_timeout(WAIT_MS)

        def complain(text):
            expected = (*allow, LATE, *(["status of 500", "status of 404"] if site.ends else []))
            if not any(word in text for word in expected):
                trouble.append(text)

        for event, hear in (
            ("console", lambda m: m.type in {"error", "warning"} and complain(f"{m.text} {m.location}")),
            ("pageerror", lambda error: complain(f"{error} {error.stack}")),
            ("request", lambda r: r.url.startswith(site.url) or complain(f"asked {r.url}")),
        ):
            page.on(event, hear)
            ends.callback(page.remove_listener, event, hear)
        page.goto(f"{site.url}/#{view}")
        return page

    with ExitStack() as ends:
        yield make
    assert not trouble
