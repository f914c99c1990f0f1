"""The live page: one document, its modules and styles, from memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from starlette.exceptions import HTTPException

from cobali_ray.api.openapi import Responses, content, errors, get

DOCUMENT = "index.html"
TYPES: Mapping[str, str] = MappingProxyType({
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
})  # fmt: skip
GUARDS: Mapping[str, str] = MappingProxyType({
    # Nothing from elsewhere, nothing inline, no frames: a page that shows answers of a model trusts no text.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
})  # fmt: skip
ASK_AGAIN = "no-cache"
FOR_GOOD = "public, max-age=31536000, immutable"
VERSIONED = re.compile(r"-\d+\.\d+\.\d+\.\w+$")
"""Names that carry a version never change their content."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    body: bytes
    media_type: str
    etag: str
    cache_control: str


@cache
def assets() -> Mapping[str, Asset]:
    """Read every file of the page once, by its path below /ui/."""
    found: dict[str, Asset] = {}
    _collect(resources.files("cobali_ray") / "ui", "", found)
    return MappingProxyType(found)


def _collect(folder: Traversable, prefix: str, found: dict[str, Asset]) -> None:
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            _collect(entry, f"{name}/", found)
        elif media_type := TYPES.get(name.rpartition(".")[2]):
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
            found[name] = Asset(body, media_type, etag, FOR_GOOD if VERSIONED.search(name) else ASK_AGAIN)


_NOT_MODIFIED: Responses = {304: {"description": "The browser's copy is current."}}
_MOVED: Responses = {308: {"description": "The page lies one level above."}}


class Page:
    """The page's routes. It needs no key: what it shows comes from routes that do."""

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(tags=["page"])
        html = content("text/html", "The page.") | _NOT_MODIFIED
        for path in ("/", "/ui"):
            get(router, path, self.document, response_class=Response, responses=html)
        kinds = {media_type: {"schema": {"type": "string"}} for media_type in TYPES.values()}
        file: Responses = {200: {"description": "A file of the page.", "content": kinds}}
        other = _NOT_MODIFIED | _MOVED | errors(404)
        get(router, "/ui/{path:path}", self.file, response_class=Response, responses=file | other)
        return router

    async def document(self, http: HttpRequest) -> Response:
        """Show the page: a playground, and the ticks of the engine as they happen."""
        return _answer(assets()[DOCUMENT], http)

    async def file(self, http: HttpRequest, path: str) -> Response:
        """Return one file of the page."""
        if not path:  # links in the document are relative to the folder above
            return Response(status_code=308, headers={"location": "../ui"})
        asset = assets().get(path)
        if asset is None or path == DOCUMENT:
            raise HTTPException(404)
        return _answer(asset, http)


def _answer(asset: Asset, http: HttpRequest) -> Response:
    headers = {"etag": asset.etag, "cache-control": asset.cache_control, **GUARDS}
    if _has(http.headers.get("if-none-match", ""), asset.etag):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.media_type)


def _has(if_none_match: str, etag: str) -> bool:
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in known or "*" in known
