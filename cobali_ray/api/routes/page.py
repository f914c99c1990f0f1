"""The live page: one document, its modules and styles, from memory.

There is no build step: one document, ES modules, style sheets, a font and vendored libraries, whose names
carry their versions. The document names every module that its first view imports, so that all are fetched at
once; what only other views need is loaded by `import()`.
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import Request as HttpRequest
from fastapi import Response
from starlette.exceptions import HTTPException

from cobali_ray.api.routes.openapi import Responses, Routes, content, errors

DOCUMENT = "index.html"
DOCS = "docs.html"
ENTRY = "app.js"
TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
}
# Nothing from elsewhere, nothing inline, no frames but its own: a page that shows answers trusts no text.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
OWN_POLICIES: Mapping[str, str] = {
    # Swagger UI draws its signs from its own style sheet.
    DOCS: POLICY.replace("img-src 'self'", "img-src 'self' data:"),
    # The one worker that reaches other hosts, those of tools; it has no document, no key and no conversation.
    "request/mcpworker.js": "default-src 'none'; script-src 'self'; connect-src http: https:",
    # Frames for what a model wrote: of an origin of their own, and without any network.
    "request/sandbox.html": "sandbox allow-scripts; default-src 'none'; "
    "script-src 'unsafe-inline' 'unsafe-eval' blob:; worker-src blob:",
    "answer/preview.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data: blob:",
}
"""Of files that need another policy than the page."""
GUARDS: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
ASK_AGAIN = "no-cache"
FOR_GOOD = "public, max-age=31536000, immutable"
VERSIONED = re.compile(r"-\d+\.\d+\.\d+\.\w+$")
"""Names that carry a version never change their content."""
GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)
"""Among accepted encodings, and not with the weight zero, which forbids it."""
IMPORTS = re.compile(rb'^(?:import .*|export .*|\}) from "(\.[^"]+)";$', re.MULTILINE)
"""Whatever a module needs before it runs; what it asks for with `import()` comes later."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page, as it is and packed; `packed` is None where that saves nothing."""

    body: bytes
    packed: bytes | None
    media_type: str
    policy: str
    etag: str
    cache_control: str


@cache
def assets() -> Mapping[str, Asset]:
    """Read every file of the page once, by its path below /ui/."""
    bodies: dict[str, bytes] = {}
    _collect(resources.files("cobali_ray") / "ui", "", bodies)
    bodies[DOCUMENT] = _preloading(bodies)
    return {name: _asset(name, body) for name, body in bodies.items()}


def _collect(folder: Traversable, prefix: str, bodies: dict[str, bytes]) -> None:
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            _collect(entry, f"{name}/", bodies)
        elif name.rpartition(".")[2] in TYPES:
            bodies[name] = entry.read_bytes()


def _preloading(bodies: Mapping[str, bytes]) -> bytes:
    """Return the document with a link to each module that its first view imports: all come at once."""
    modules: dict[str, None] = {}
    todo = [ENTRY]
    while todo:
        name = todo.pop()
        if name not in modules:
            modules[name] = None
            folder = posixpath.dirname(name)
            imported = [match.decode() for match in IMPORTS.findall(bodies[name])]
            todo += [posixpath.normpath(posixpath.join(folder, path)) for path in imported]
    links = "".join(f'    <link rel="modulepreload" href="ui/{name}">\n' for name in modules)
    return bodies[DOCUMENT].replace(b"  </head>", links.encode() + b"  </head>")


def _asset(name: str, body: bytes) -> Asset:
    packed = gzip.compress(body, mtime=0)
    return Asset(
        body,
        packed if len(packed) < len(body) else None,
        TYPES[name.rpartition(".")[2]],
        OWN_POLICIES.get(name, POLICY),
        hashlib.sha256(body).hexdigest()[:20],
        FOR_GOOD if VERSIONED.search(name) else ASK_AGAIN,
    )


_NOT_MODIFIED: Responses = {304: {"description": "The browser's copy is current."}}
_MOVED: Responses = {308: {"description": "The page is one level up."}}


class Page:
    """The page's routes. It needs no key: what it shows comes from routes that do."""

    def routes(self) -> Routes:
        assets()
        routes = Routes("page")
        html = content("text/html", "The page.") | _NOT_MODIFIED
        for path in ("/", "/ui"):
            routes.get(path, self.document, response_class=Response, responses=html)
        docs = content("text/html", "The API's operations.") | _NOT_MODIFIED
        routes.get("/docs", self.docs, response_class=Response, responses=docs)
        kinds = {media_type: {"schema": {"type": "string"}} for media_type in TYPES.values()}
        file: Responses = {200: {"description": "A file of the page.", "content": kinds}}
        other = _NOT_MODIFIED | _MOVED | errors(404)
        routes.get("/ui/{path:path}", self.file, response_class=Response, responses=file | other)
        return routes

    async def document(self, http: HttpRequest) -> Response:
        """Return the page: chat, comparison and live ticks."""
        return _answer(assets()[DOCUMENT], http)

    async def docs(self, http: HttpRequest) -> Response:
        """Return this documentation of the API, in which operations can be tried."""
        return _answer(assets()[DOCS], http)

    async def file(self, http: HttpRequest, path: str) -> Response:
        """Return a file of the page."""
        if not path:  # links in the document are relative to the folder above
            return Response(status_code=308, headers={"location": "../ui"})
        asset = assets().get(path)
        if asset is None or path in {DOCUMENT, DOCS}:
            raise HTTPException(404)
        return _answer(asset, http)


def _answer(asset: Asset, http: HttpRequest) -> Response:
    packed = asset.packed if GZIP.search(http.headers.get("accept-encoding", "")) else None
    etag = f'"{asset.etag}{"-gzip" if packed else ""}"'
    headers = {"etag": etag, "cache-control": asset.cache_control, "vary": "accept-encoding"}
    headers |= {"content-security-policy": asset.policy, **GUARDS}
    if _has(http.headers.get("if-none-match", ""), etag):
        return Response(status_code=304, headers=headers)
    if packed:
        headers["content-encoding"] = "gzip"
    return Response(packed or asset.body, headers=headers, media_type=asset.media_type)


def _has(if_none_match: str, etag: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in tags or "*" in tags
