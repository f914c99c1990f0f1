"""The view of ticks in a browser: axis, zoom, links, files, the table of requests."""

import json
import re
from dataclasses import asdict

import httpx2
import pytest
from axe import violations
from hands import drawn, momentary, until
from stack import Site

from cobali_ray.core.views.stats import DeviceView

pytest.importorskip("playwright")
from playwright.sync_api import expect

SHOWN = """async () => {
    const { windowOf } = await import("/ui/plots/window.js");
    const { feed } = await import("/ui/feed/feed.js");
    const { axis, lo, hi, ticks } = windowOf(feed.get().history);
    const [first, last] = [ticks[0], ticks.at(-1)].map((tick) => tick?.tick_id);
    return { axis: axis.name, lo, hi, n: ticks.length, first, last };
}"""
REACH = """async () => {
    const { AXES, reachOf } = await import("/ui/plots/axis.js");
    const { feed } = await import("/ui/feed/feed.js");
    return reachOf(feed.get().history, AXES.time);
}"""


@pytest.fixture(scope="module")
def site():
    """A site of which no other file asks: all of its ticks are shown here."""
    with Site() as site:
        yield site


def ask(site, n_tokens, n=1, **fields):
    for _ in range(n):
        body = {"prompt": "tell me of ticks", "max_tokens": n_tokens, "ignore_eos": True} | fields
        httpx2.post(f"{site.url}/v1/completions", json=body, timeout=60).raise_for_status()


def open_ticks(make_page, site, **options):
    """Open the view and wait for its plots."""
    page = make_page(site, "ticks", **options)
    expect(page.get_by_role("img", name="Tokens of each tick")).to_be_visible()
    return page


def place(element, x, y=0.5):
    """Return a point of an element's plot, by shares; beside it are the scale and a margin."""
    box = element.bounding_box()
    return box["x"] + 64 + x * (box["width"] - 64 - 26), box["y"] + y * box["height"]


def drag(page, element, x0, x1, key=None):
    if key:
        page.keyboard.down(key)
    page.mouse.move(*place(element, x0))
    page.mouse.down()
    page.mouse.move(*place(element, (x0 + x1) / 2))
    page.mouse.move(*place(element, x1))
    page.mouse.up()
    if key:
        page.keyboard.up(key)


def test_ticks_are_zoomed_and_brushed_on_either_axis(make_page, site):
    ask(site, 60, n=4)
    page = open_ticks(make_page, site)
    plot = page.get_by_role("img", name="Tokens of each tick")
    slider = page.get_by_role("slider", name="Tick")
    assert page.evaluate(SHOWN)["n"] == 120
    slider.press("+")
    assert page.evaluate(SHOWN)["n"] == 80
    page.get_by_role("button", name="Zoom out").click()
    assert page.evaluate(SHOWN)["n"] == 120
    page.get_by_role("button", name="All").click()
    expect(page.get_by_text("paused")).to_be_visible()
    whole = page.evaluate(SHOWN)
    assert whole["n"] >= 240

    drag(page, plot, 0.25, 0.5, key="Shift")  # a selection is what is shown then
    part = page.evaluate(SHOWN)
    assert part["n"] == pytest.approx(whole["n"] / 4, rel=0.05)
    assert part["first"] == pytest.approx(whole["first"] + whole["n"] / 4, abs=3)
    drag(page, plot, 0.5, 0.75)  # without a key it pans
    panned = page.evaluate(SHOWN)
    assert panned["first"] == pytest.approx(part["first"] - part["n"] / 4, abs=2)
    page.mouse.move(*place(plot, 0.9))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -60)
    page.keyboard.up("Control")
    until(page, f"() => ({SHOWN})().then(({{ n }}) => n < 0.8 * {panned['n']})")
    zoomed = page.evaluate(SHOWN)
    assert zoomed["last"] > panned["last"] - 0.1 * panned["n"], "what was pointed at stays there"

    page.get_by_role("button", name="Time", exact=True).click()
    timed = page.evaluate(SHOWN)
    assert (timed["axis"], timed["first"], timed["last"]) == ("time", zoomed["first"], zoomed["last"])
    drag(page, page.get_by_role("slider", name="Part that is shown"), 0.6, 0.9)
    brushed, reach = page.evaluate(SHOWN), page.evaluate(REACH)
    assert brushed["hi"] - brushed["lo"] == pytest.approx(0.3 * (reach["hi"] - reach["lo"]), rel=0.05)
    assert brushed["lo"] == pytest.approx(reach["lo"] + 0.6 * (reach["hi"] - reach["lo"]), rel=0.02)
    page.wait_for_function("(hi) => location.hash.includes(`&to=${hi.toFixed(6)}`)", arg=brushed["hi"])
    page.reload()
    expect(page.get_by_text("paused")).to_be_visible()
    again = page.evaluate(SHOWN)
    assert (again["axis"], again["n"], again["last"]) == ("time", brushed["n"], brushed.get("last"))
    assert (again["lo"], again["hi"]) == pytest.approx((brushed["lo"], brushed["hi"]), abs=1e-5)


NEWEST_SLOT = """import("/ui/feed/feed.js")
    .then(({ feed }) => feed.get().history.ticks.at(-1).spans[0][0])"""


def test_a_link_leads_to_the_moment_and_its_request(make_page, site):
    ask(site, 30)
    page = open_ticks(make_page, site)
    lanes = page.locator(".lanes")
    box, slot = lanes.bounding_box(), page.evaluate(NEWEST_SLOT)
    lanes.click(position={"x": box["width"] - 60, "y": (slot + 0.5) * box["height"] / 8})
    life = page.get_by_role("region", name="Life of a request")
    heading = life.get_by_role("heading", level=2)
    expect(heading).to_have_text(re.compile("^Request "))
    request = heading.inner_text()
    page.mouse.move(0, 0)  # what is pointed at is shown before what was clicked
    drawn(page)
    tick = page.get_by_role("slider", name="Tick").get_attribute("aria-valuenow")
    momentary(page)
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("status").filter(has_text=re.compile("Link copied|address bar"))).to_have_count(1)
    page.wait_for_function("(part) => location.hash.includes(part)", arg=f"tick={tick}&n=")
    other = make_page(site, page.evaluate("location.hash.slice(1)"))
    expect(other.get_by_role("slider", name="Tick")).to_have_attribute("aria-valuenow", tick)
    expect(other.get_by_role("button", name="Go live")).to_be_visible()
    expect(
        other.get_by_role("region", name="Life of a request").get_by_role("heading", level=2)
    ).to_have_text(request)
    other.get_by_role("button", name="Go live").click()
    other.wait_for_function("() => location.hash === '#ticks'")
    other.evaluate("location.hash = '#ticks?run=0000&tick=7'")
    expect(other.get_by_role("alert")).to_contain_text("Tick 7 is from an earlier run")


EARLY = """async () => {
    const { script } = await import("/ui/parts/lazy.js");
    const { feed, merge } = await import("/ui/feed/feed.js");
    const { html, render } = await import("/ui/parts/preact.js");
    const { isLive, view } = await import("/ui/plots/window.js");
    await script("ui/vendor/uplot-1.6.32.js");
    const { Ticks } = await import("/ui/ticks/ticks.js");
    const packet = await (await fetch("/debug/ticks?last=600")).json();
    const tick = packet.ticks.at(-9).tick_id;
    history.replaceState(null, "", `#ticks?tick=${tick}&n=8`);
    feed.set({ history: null });
    render(html`<${Ticks} />`, document.body.appendChild(document.createElement("div")));
    merge(packet); // after the first drawing, and before what that does afterwards
    for (let n = 0; n < 600 && isLive(); n += 1) await new Promise((done) => setTimeout(done, 50));
    return { live: isLive(), off: view.get().pinned - tick };
}"""


def test_a_link_is_not_lost_where_ticks_come_while_the_view_is_drawn(make_page, site):
    ask(site, 30)
    page = make_page(site, "chat")
    until(page, "() => import('/ui/feed/feed.js').then(({ feed }) => feed.get().history !== null)")
    assert page.evaluate(EARLY) == {"live": False, "off": 0}


def test_what_is_shown_is_saved_as_files(make_page, site):
    ask(site, 20)
    page = open_ticks(make_page, site)
    page.get_by_role("button", name="Pause").click()
    shown = page.evaluate(SHOWN)
    saved = {}
    for kind in ("JSON", "Perfetto"):
        page.locator(".download summary").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=kind).click()
        saved[kind] = json.loads(download.value.path().read_text())
        name = download.value.suggested_filename
        assert name.startswith(f"cobali-0-ticks-{shown['first']}-{shown['last']}")
    ids = [tick["tick_id"] for tick in saved["JSON"]["ticks"]]
    assert ids == list(range(shown["first"], shown["last"] + 1))
    told = httpx2.get(f"{site.url}/debug/ticks", params={"last": 4096, "since": ids[0]}).json()
    assert saved["JSON"]["ticks"] == told["ticks"][: len(ids)], "as the server tells them"
    named = {event["name"] for event in saved["Perfetto"]["traceEvents"]}
    assert {f"tick {i}" for i in ids} <= named


def test_every_request_can_be_found_and_followed(make_page, site):
    ask(site, 1, n=30)
    ask(site, 9)
    page = open_ticks(make_page, site)
    requests = page.get_by_role("region", name="Requests", exact=True)
    rows = requests.locator("tbody tr")
    expect(rows).to_have_count(25)
    expect(requests.get_by_role("columnheader", name="model")).to_have_count(0)  # there is one
    expect(requests.get_by_role("navigation")).to_contain_text(re.compile(r"1.25 of \d\d"))
    oldest = page.evaluate("""() => import("/ui/feed/feed.js").then(({ feed }) =>
        [...feed.get().history.requests.values()].sort((a, b) => a.ended_s - b.ended_s)[0].request_id)""")
    requests.get_by_label("Search requests").fill(oldest)
    expect(rows).to_have_count(1)
    rows.get_by_role("button").click()
    life = page.get_by_role("region", name="Life of a request")
    expect(life.locator("h2 code")).to_have_attribute("title", oldest)
    life.get_by_role("button", name="Show its ticks").click()
    expect(page.get_by_text("paused")).to_be_visible()
    requests.get_by_label("Search requests").fill("nobody at all")
    expect(requests).to_contain_text("No request matches.")
    requests.get_by_label("Search requests").fill("")
    requests.get_by_role("button", name="output, tok").click()
    output = requests.get_by_role("columnheader", name="output, tok")
    expect(output).to_have_attribute("aria-sort", "descending")
    column = output.evaluate("(th) => th.cellIndex")
    most = rows.first.locator("th, td").nth(column)
    assert int(most.inner_text()) >= 9
    requests.get_by_role("button", name="Next").click()
    expect(most).to_have_text("1")
    requests.get_by_role("button", name="output, tok").click()
    expect(output).to_have_attribute("aria-sort", "ascending")
    expect(requests.get_by_role("button", name="Previous")).to_be_disabled()  # the first page again


LIFE = """async () => {
    const { Life } = await import("/ui/record/life.js");
    const { History } = await import("/ui/feed/history.js");
    const { html, render } = await import("/ui/parts/preact.js");
    const packet = await (await fetch("/debug/ticks?last=8")).json();
    const history = new History(packet);
    const request = [...history.requests.values()].at(-1);
    const at = document.body.appendChild(document.createElement("div"));
    render(html`<${Life} history=${history} request=${request} nowS=${packet.now_s} />`, at);
    return at.querySelector("path.decode").getAttribute("d");
}"""


def test_a_life_of_which_only_the_end_is_known_is_drawn_from_there(make_page, site):
    ask(site, 30)
    page = make_page(site, "chat")
    x, y, x1 = re.match(r"M(\S+) (\S+) H(\S+)", page.evaluate(LIFE)).groups()
    assert float(x) == float(x1) > 0, "there is nothing to draw of the time before"
    assert float(y) < 84 / 2, "it had most of its tokens by then"


ALIKE = """(width) => {
    const cards = [...document.querySelectorAll(".engine-card")];
    const [one, other] = cards.map((card) => card.getBoundingClientRect());
    return innerWidth === width && one.y === other.y && Math.abs(one.width - other.width) < 0.01;
}"""


def with_devices(route):
    """Let the engines have two devices, of which one does not answer."""
    answer = (response := route.fetch()).json()
    used = DeviceView(name="CUDA0", kind="GPU", free_bytes=2 * 10**9, total_bytes=8 * 10**9, busy_share=0.42)
    for engine in answer["engines"]:
        engine["devices"] = [asdict(used), asdict(DeviceView(name="far:1", kind="worker", there=False))]
    route.fulfill(response=response, json=answer)


def test_of_two_engines_the_chosen_one_is_in_the_link_and_requests_have_a_column_for_their_model(make_page):
    with Site(engines=("a", "b")) as site:
        ask(site, 5, model="model-a")
        ask(site, 30, model="model-b")
        page = make_page(site, "ticks", allow=["ERR_"])
        page.route("**/health", with_devices)
        cards = page.get_by_role("group", name="Engines").get_by_role("button")
        requests = page.get_by_role("region", name="Requests", exact=True)
        rows = requests.locator("tbody tr")
        expect(cards.first).to_have_attribute("aria-pressed", "true")
        for card in cards.all():
            expect(card.locator("path").last).to_have_attribute("d", re.compile("^M.*z$"))  # a strip
        shown = [
            re.compile(r"CUDA0 · 6.00\s?GB of 8.00\s?GB · 42\s?% busy"),
            "far:1 · missing: it does not answer",
        ]
        expect(cards.first.locator(".engine-device")).to_have_text(shown)
        page.unroute("**/health", with_devices)
        expect(cards).to_have_text(
            [re.compile(rf"model-{id_}engine {id_} · 0 of 8 slots busy") for id_ in "ab"]
        )
        expect(page.locator(".pill").get_by_label("engine")).to_be_hidden()  # the cards are the choice here
        for width in (1280, 390):  # side by side, and as wide as each other
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_function(ALIKE, arg=width)
        page.set_viewport_size({"width": 1280, "height": 800})
        page.get_by_role("button", name="Time", exact=True).click()
        cards.last.click()
        expect(page.get_by_role("button", name="Time", exact=True)).to_have_attribute("aria-pressed", "true")
        page.get_by_role("button", name="Ticks", exact=True).click()
        page.wait_for_function("() => location.hash === '#ticks?engine=b'")
        page.reload()

        expect(cards.last).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".pill .model")).to_have_text("model-b")
        expect(rows).to_have_count(1)
        expect(page.get_by_role("slider", name="Tick")).to_have_attribute("aria-valuemax", "29")
        column = requests.get_by_role("columnheader", name="model").evaluate("(th) => th.cellIndex")
        expect(rows.locator("th, td").nth(column)).to_have_text("model-b")
        for search, n in (("model-a", 0), ("MODEL-B", 1)):
            requests.get_by_label("Search requests").fill(search)
            expect(rows).to_have_count(n)
            expect(requests.get_by_role("status")).to_have_text(re.compile(f"^{n} of 1 request "))
        page.wait_for_function("() => location.hash === '#ticks?engine=b'")
        page.get_by_role("link", name="Live ticks").click()
        page.wait_for_function("() => location.hash === '#ticks?engine=b'")
        page.get_by_role("button", name="Pause").click()
        page.wait_for_function("() => /engine=b&.*tick=/.test(location.hash)")
        page.get_by_role("link", name="Live ticks").click()  # without a moment, of the same engine
        page.wait_for_function("() => location.hash === '#ticks?engine=b'")
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        cards.first.click()
        page.wait_for_function("() => location.hash === '#ticks?engine=a'")
        expect(page.get_by_role("slider", name="Tick")).to_have_attribute("aria-valuemax", "4")
        page.evaluate("location.hash = '#ticks?engine=c'")
        expect(page.get_by_role("alert")).to_contain_text("no engine c")


def test_the_view_is_accessible_paused_in_time_with_everything_open(make_page, site):
    ask(site, 20, n=2)
    page = open_ticks(make_page, site)
    page.get_by_role("button", name="Time", exact=True).click()
    page.get_by_role("slider", name="Tick").press("ArrowLeft")
    page.locator(".requests tbody button").first.click()
    page.evaluate("location.hash = '#ticks?run=0000&tick=7'")
    expect(page.get_by_role("alert")).to_be_visible()
    page.locator(".download summary").click()
    expect(page.get_by_role("button", name="Perfetto")).to_be_visible()
    assert not violations(page)
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_text("The axis is logarithmic")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name="Explain")).to_have_attribute("aria-pressed", "false")
    expect(page.get_by_role("img", name="Tokens of each tick")).to_be_visible()
    expect(page.get_by_text("The axis is logarithmic")).to_have_count(0)


def test_on_a_phone_two_fingers_zoom_and_the_choice_of_a_download_is_in_sight(make_page, site):
    ask(site, 130)
    page = open_ticks(make_page, site, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    before = page.evaluate(SHOWN)
    client = page.context.new_cdp_session(page)
    plot = page.get_by_role("img", name="Tokens of each tick")
    plot.evaluate("(e) => e.scrollIntoView({ block: 'center' })")
    box = plot.bounding_box()
    y, middle = box["y"] + 40, box["x"] + 64 + (box["width"] - 90) / 2
    for kind, apart in (("touchStart", 30), ("touchMove", 45), ("touchMove", 60), ("touchEnd", None)):
        points = (
            []
            if apart is None
            else [{"x": middle + s * apart, "y": y, "id": i} for i, s in enumerate((-1, 1))]
        )
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    until(page, f"() => ({SHOWN})().then(({{ n }}) => Math.abs(n - {before['n'] / 2}) <= 2)")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_text("Download", exact=True).tap()
    menu = page.locator(".download .menu")
    expect(menu).to_be_visible()
    box = menu.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


@pytest.mark.thorough
def test_three_plain_sentences_say_how_to_read_the_ticks_until_they_are_put_away(make_page, site):
    page = make_page(site, "ticks")
    said = page.get_by_role("region", name="How to read this")
    expect(said.get_by_role("listitem")).to_have_count(3)
    said.get_by_role("button", name="Got it").click()
    expect(said).to_have_count(0)
    page.reload()
    back = page.get_by_role("button", name="How to read this")
    expect(back).to_be_visible()
    expect(said).to_have_count(0)
    back.click()
    expect(said).to_be_visible()
