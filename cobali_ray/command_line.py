"""What several commands have on their command lines: settings, `--set name=value`, and the server to ask."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cobali_ray.errors import ConfigError

if TYPE_CHECKING:
    import httpx2

DEFAULT_URL: Final = "http://127.0.0.1:8000"
READY_S: Final = 5.0
"""How long a server may take to say whether it is ready."""
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="The API key, if the server needs one.",
        envvar=["COBALI_API_KEY", "COBALI_KEY"],
        show_default=False,
    ),
]
"""How every command takes the key with which it asks a server."""
Url = Annotated[str, typer.Option("--url", help="Address of the server.")]


def address_of(url: str) -> str:
    """Return a server's address without `/v1` or a slash at its end. Raises ConfigError if it is none."""
    import httpx2

    plain = url.rstrip("/").removesuffix("/v1")
    try:
        address = httpx2.URL(plain)
    except httpx2.InvalidURL:
        address = httpx2.URL()
    if address.scheme not in {"http", "https"} or not address.host:
        raise ConfigError("--url", f"'{url}' is not an address such as {DEFAULT_URL}")
    return plain


def is_ready(http: httpx2.Client) -> bool:
    """Whether a server takes requests and loads no model; `/ready` says 200 once it has one of several."""
    import httpx2
    import orjson

    with contextlib.suppress(httpx2.TransportError, ValueError, LookupError, TypeError):
        answer = http.get("/ready", timeout=READY_S)
        engines = orjson.loads(answer.content)["engines"]
        loading = any(engine["status"] == "loading" for engine in engines)
        return answer.status_code == httpx2.codes.OK and not loading
    return False


def bearer(key: str | None) -> dict[str, str]:
    """Return the headers with which a key is sent; none without one. Raises ConfigError."""
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError("--key", "an API key has no line breaks, and no characters outside ASCII")
    return {"authorization": f"Bearer {key}"} if key else {}


def given_settings(settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """Return what the command line says; it wins over the environment, which wins over a file.

    An option that is None says nothing. Raises ConfigError.
    """
    assigned = dict(assignment(text) for text in settings or [])
    assigned |= {name: value for name, value in options.items() if value is not None}
    for name in assigned:
        os.environ.pop(f"COBALI_{name.upper()}", None)
    return assigned


def assignment(text: str) -> tuple[str, Any]:
    """Read `name=value`, whose value is YAML. Raises ConfigError."""
    import yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("--set", "expected NAME=VALUE, but there is no =")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(name.strip(), f"the value is not valid YAML{line_of(error)}") from error
    except (ValueError, RecursionError):  # an impossible date, a number too long, brackets without end
        raise ConfigError(name.strip(), "the value is not valid YAML") from None


def line_of(error: Exception) -> str:
    """Say where YAML breaks off. Its own message quotes the line, which may hold a key."""
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f": line {mark.line + 1}, column {mark.column + 1}"
