"""How the page is served: types, caching, guards, and without a key."""

import gzip
import posixpath
import re
from pathlib import Path

import pytest
from fake_client import Wire

from cobali_ray.api.routes.page import assets

UI = Path(__file__).parents[2] / "cobali_ray" / "ui"
OWN = sorted(path for path in UI.rglob("*.*") if "vendor" not in path.parts)


@pytest.mark.parametrize("path", ["/", "/ui"])
async def test_the_document_is_served_with_its_guards(get, path):
    wire = await get(path)
    assert (wire.status, wire.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.sub(rb'    <link rel="modulepreload".*\n', b"", wire.body) == (UI / "index.html").read_bytes()
    policy = wire.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"https?://", policy) == []
    assert wire.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "kind", "cache"),
    [
        pytest.param("app.js", "text/javascript; charset=utf-8", "no-cache", id="module"),
        pytest.param("base.css", "text/css; charset=utf-8", "no-cache", id="style"),
        pytest.param("icon.svg", "image/svg+xml", "no-cache", id="icon"),
        pytest.param(
            "vendor/uplot-1.6.32.js",
            "text/javascript; charset=utf-8",
            "public, max-age=31536000, immutable",
            id="versioned",
        ),
        pytest.param(
            "vendor/inter-5.3.0.woff2", "font/woff2", "public, max-age=31536000, immutable", id="font"
        ),
        pytest.param("vendor/uplot-LICENSE.txt", "text/plain; charset=utf-8", "no-cache", id="licence"),
    ],
)
async def test_files_have_types_and_lifetimes(get, path, kind, cache):
    wire = await get(f"/ui/{path}")
    assert (wire.status, wire.headers["content-type"], wire.headers["cache-control"]) == (200, kind, cache)
    assert wire.body == (UI / path).read_bytes()
    assert int(wire.headers["content-length"]) == len(wire.body)


async def test_who_has_the_file_gets_no_body(get):
    etag = (await get("/ui/app.js")).headers["etag"]
    for sent in (etag, f'"other", W/{etag}', "*"):
        again = await get("/ui/app.js", headers=[("if-none-match", sent)])
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
    assert (await get("/ui/app.js", headers=[("if-none-match", '"older"')])).status == 200


async def test_files_are_packed_for_who_takes_that(get):
    plain = await get("/ui/app.js")
    packed = await get("/ui/app.js", headers=[("accept-encoding", "br, gzip;q=0.5")])
    assert (packed.status, packed.headers["content-encoding"]) == (200, "gzip")
    assert gzip.decompress(packed.body) == plain.body
    assert all("accept-encoding" in wire.headers["vary"] for wire in (packed, plain))
    assert packed.headers["etag"] != plain.headers["etag"]
    known = [("accept-encoding", "gzip"), ("if-none-match", packed.headers["etag"])]
    assert (await get("/ui/app.js", headers=known)).status == 304
    font = "/ui/vendor/inter-5.3.0.woff2"
    for path, accepted in (("/ui/app.js", "gzip;q=0, br"), ("/ui/app.js", "identity"), (font, "gzip")):
        wire = await get(path, headers=[("accept-encoding", accepted)])
        assert "content-encoding" not in wire.headers


async def test_the_document_names_each_module_of_its_first_view(get):
    named = re.findall(r'modulepreload" href="ui/([^"]+)"', (await get("/")).body.decode())
    assert {"app.js", "chat/chatview.js", "parts/preact.js", "vendor/htm-preact-3.1.1.js"} <= set(named)
    assert len(named) == len(set(named))
    assert not {"ticks/ticks.js", "compare/compare.js"} & set(named), "they come when they are opened"


async def test_the_api_is_described_without_a_key_and_without_another_host(get, make_app):
    app = make_app(api_keys=("one",))
    page = await get("/docs", app=app)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "unsafe" not in page.headers["content-security-policy"]
    assert not re.findall(rb"https?://", page.body)
    assert (await get("/openapi.json", app=app)).json["info"]["title"] == "cobali_ray"
    assert (await get("/redoc")).status == 404


@pytest.mark.parametrize(
    "path", ["/ui/none.js", "/ui/index.html", "/ui/docs.html", "/ui/../api/app.py", "/ui/vendor"]
)
async def test_unknown_files_are_404_in_openais_shape(get, path):
    wire = await get(path)
    assert (wire.status, wire.json["error"]["code"]) == (404, "unknown_path")


async def test_a_closing_slash_leads_to_the_page(get):
    wire = await get("/ui/")
    assert (wire.status, wire.headers["location"]) == (308, "../ui")


async def test_the_page_needs_no_key_but_its_data_does(get, make_app):
    app = make_app(api_keys=("one",))
    for path in ("/", "/ui", "/ui/app.js"):
        assert (await get(path, app=app)).status == 200
    for path in ("/debug/ticks", "/debug/stream", "/v1/models", "/uix"):
        assert (await get(path, app=app)).status == 401


async def test_a_prefix_of_the_whole_app_changes_nothing(make_app):
    wire = Wire(make_app(api_keys=("one",)), "/prefix/ui/app.js", method="GET")
    wire.scope["root_path"] = "/prefix"
    assert (await wire.run()).status == 200


def test_nothing_is_loaded_from_elsewhere():
    for path in OWN:
        text = path.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.findall(r"https?://(?!\w+\.example/)\S+", text), path.name
        if path.suffix == ".html" and "unsafe-inline" not in assets()[f"{path.relative_to(UI)}"].policy:
            assert not re.findall(r"<script>|<style| style=| on\w+=", text), (
                "the policy forbids what is inline"
            )


def test_every_import_and_link_leads_to_a_file():
    linked = set()
    for path in OWN:
        text = path.read_text(encoding="utf-8")
        beside = re.findall(r'(?:from |import\()"(\.[^"]+)"', text) + re.findall(r'url\("([^":]+)"\)', text)
        folder = path.parent.relative_to(UI).as_posix()
        linked |= {posixpath.normpath(posixpath.join(folder, name)) for name in beside}
        linked |= {name.removeprefix("ui/") for name in re.findall(r'"(ui/[^"]+)"', text)}
    for path in (UI / "vendor").glob("*.css"):
        fonts = re.findall(r'url\("([^":]+)"\)', path.read_text(encoding="utf-8"))
        linked |= {f"vendor/{name}" for name in fonts}
    assert linked <= set(assets())
    unused = {name for name in assets() if not name.endswith(".txt")} - linked
    assert unused == {"index.html", "docs.html"}


def test_vendored_files_have_their_licences():
    for name in (
        "highlight",
        "htm",
        "inter",
        "katex",
        "marked",
        "mermaid",
        "pdf",
        "preact",
        "swagger-ui",
        "uplot",
    ):
        assert assets()[f"vendor/{name}-LICENSE.txt"].body


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=lambda path: path.name)
def test_modules_are_small_and_say_what_for(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("// ")
    assert len(lines) <= 250
    assert max(map(len, lines)) <= 118


ROOMS = (("chat", "compare", "ticks"), ("answer", "record"), ("plots",), ("feed",), ("request",), ("parts",))
"""The rooms of the page: none imports from its own row or from one above."""


def test_rooms_of_the_page_import_only_from_those_below():
    rank = {room: n for n, row in enumerate(ROOMS) for room in row}
    assert {path.name for path in UI.iterdir() if path.is_dir()} == {*rank, "vendor"}
    wrong = []
    for path in OWN:
        room = path.parent.relative_to(UI).as_posix()
        for name in re.findall(r'(?:from |import\()"(\.[^"]+)"', path.read_text(encoding="utf-8")):
            other = posixpath.dirname(posixpath.normpath(posixpath.join(room, name)))
            if other not in {room, "vendor"} and room in rank and rank.get(other, -1) <= rank[room]:
                wrong.append((path.name, name))
    assert wrong == []
