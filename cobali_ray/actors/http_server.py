"""Changes to uvicorn, in replicas and in Serve's own proxy.

Streams for HTTP/1.0, which knows no chunks, end with their connection: proxies such as nginx ask in HTTP/1.0
by default, uvicorn sends chunks to everybody, and HAProxy passes them on. And what uvicorn cannot
read it refuses in JSON instead of plain text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http import httptools_impl

from cobali_ray.actors.front import raw_answer

if TYPE_CHECKING:  # uvicorn's name for what an application sends
    from uvicorn._types import ASGISendEvent


class Cycle(httptools_impl.RequestResponseCycle):
    """One request and its answer. In HTTP/1.0 uvicorn closes the connection behind every answer anyway."""

    _endless = False
    """Whether nothing but that says where the answer ends."""

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            sized = b"content-length" in {name.lower() for name, _ in message.get("headers", ())}
            if self.scope["http_version"] == "1.0" and not sized:
                self._endless, self.chunked_encoding = True, False
        elif self._endless and message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def refuse(connection: httptools_impl.HttpToolsProtocol, _: str) -> None:
    connection.transport.write(raw_answer(400))
    connection.transport.close()


def mend_uvicorn() -> list[Any]:
    """Make these changes to uvicorn in this process; return Serve's list of middlewares, which is empty."""
    httptools_impl.RequestResponseCycle = Cycle  # type: ignore[misc]
    httptools_impl.HttpToolsProtocol.send_400_response = refuse  # type: ignore[method-assign,assignment]
    return []
