"""The front end of `cobali serve`: HAProxy as Ray Serve starts it, with its configuration mended.

Serve writes HAProxy's configuration anew and starts another HAProxy on it whenever replicas come or go. What
it takes for the binary is our launcher: it mends the configuration (`mend`, text in, text out) and becomes
HAProxy. A line that `mend` expects and does not find is an error, so that no version of Ray drops a mend in
silence. The launcher runs this file on a bare Python, so nothing heavy is imported at its top.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path

from cobali_ray.api.door.ids import CLIENT_HEADER, HEADER_BYTES, SANE_ID
from cobali_ray.errors import FrontEndError, HeadersTooLargeError, StartError
from cobali_ray.ports import LOOPBACK, free_blocks
from cobali_ray.signals import end_with_parent

REQUEST_TIMEOUT_S = 10
"""How long headers, and what of the body fits the buffer, may take to arrive."""
CLIENT_TIMEOUT_S = 60
"""How long a client may stop in the middle of a longer body, or leave a full stream unread. Waiting for an
answer is neither, however long it takes."""
MAX_OLD_PROXY_S = 86_400
"""How long an answer may still take once HAProxy was replaced by one with another configuration. Serve does
that whenever a replica comes or goes, and would cut all answers two minutes later."""
QUARANTINE_S = 150
"""How long a replica's port is left alone after its end. Serve would add half a minute to the above, and all
replicas that listen are of one application."""
BUFFER_BYTES = 32 << 10
"""HAProxy's buffer: of longer headers it only says that they are no HTTP that it can read."""
FRONT_HOST = "COBALI_RAY_FRONT_HOST"
"""The variable that says to ingresses where the HAProxy of their node listens; unset where there is none."""
MEND_UVICORN = "cobali_ray.actors.http_server:mend_uvicorn"
"""What Serve calls wherever it starts uvicorn: in replicas and in its own proxy."""
N_HEADERS = HEADER_BYTES // len("a:\r\n")
"""More lines than this are longer than allowed; HAProxy's own limit is 101."""
_BEFORE_HELD = (
    "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT",
    "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
)
"""The port after each of these is in its block, and nobody uses it."""
PROBES = ("/health", "/ready", "/-/healthz")
"""Answered also for a source with too many connections."""
ERRORS: Mapping[int, tuple[str, str, str]] = {
    400: (
        "invalid_request_error",
        "invalid_http",
        "This is not a valid HTTP/1.1 request, or it broke off before its end.",
    ),
    408: (
        "timeout",
        "request_timeout",
        f"The first {BUFFER_BYTES >> 10} kB of the request did not arrive within {REQUEST_TIMEOUT_S} s.",
    ),
    429: (
        "rate_limit_error",
        "too_many_connections",
        "Too many connections are open from your address; use fewer, or close idle ones.",
    ),
    431: ("invalid_request_error", HeadersTooLargeError.code, str(HeadersTooLargeError(HEADER_BYTES))),
    500: ("server_error", "internal_error", "The front end failed on this request."),
    501: (
        "invalid_request_error",
        "not_implemented",
        "The request uses a part of HTTP that is not supported here.",
    ),
    502: (
        "server_error",
        "ingress_died",
        "The process that was handling the request ended or answered wrongly; it restarts automatically.",
    ),
    503: ("server_error", "loading", "The server is starting or restarting and takes no requests yet."),
    504: ("timeout", "answer_timeout", "The server did not answer in time."),
}
"""HAProxy's own errors: type, code and message by status."""

_ALERT = re.compile(r"^\[ALERT\][^:]*: (.*\S)", re.MULTILINE)
_ENDED = re.compile(r"Exiting|Fatal errors")
_CLOSE = "hdr connection close"
_MARK = "# mended by cobali_ray"
_OF_ANY_FRONT = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": MEND_UVICORN,
    # Ten looks a second, as Serve has it, take 2 % of two cores from the model, and twice that of its pace.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Serve's own metrics, which nobody asks for: each process works them out, by default ten times a second.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",
}
_LAUNCHER = """#!/bin/sh
# HAProxy as Ray Serve starts it, once its configuration is mended.
exec {python} -IS -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); \
from cobali_ray.actors.front import launch; launch(*sys.argv[1:])' {root} {binary} {folder} {host} "$@"
"""


def fast_front(environ: MutableMapping[str, str], folder: Path, binary: str, *, host: str = LOOPBACK) -> None:
    """Set Serve's flags for HAProxy, with everything of this cluster in `folder`; exported values win.

    HAProxy listens on `host`. Start Serve with 127.0.0.1, so that its replicas and its own proxy, which
    listen on Serve's address, can only be reached through HAProxy.
    Raises StartError where no program of the folder may be run: Serve would try for ever.
    """
    for status, path in page_paths(folder).items():
        path.write_bytes(_body(status))
    launcher = folder / "haproxy"
    root = Path(__file__).parents[2]
    words = {"python": sys.executable, "root": root, "binary": binary, "folder": folder, "host": host}
    launcher.write_text(_LAUNCHER.format(**{name: shlex.quote(str(word)) for name, word in words.items()}))
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    if not os.access(launcher, os.X_OK):
        why = f"{folder.parent} is mounted noexec; mount it with exec (`docker run --tmpfs /tmp:exec`)"
        raise StartError("HAProxy", why)
    http, grpc, (metrics, stats, fallback, *_) = free_blocks(3)
    flags = _OF_ANY_FRONT | {
        FRONT_HOST: host,
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        # Bound seconds from now: no outgoing connection may take them until then.
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": str(CLIENT_TIMEOUT_S),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(MAX_OLD_PROXY_S),
        "RAY_SERVE_PORT_QUARANTINE_S": str(QUARANTINE_S),
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(BUFFER_BYTES),
        # Serve binds these with SO_REUSEPORT: two clusters on the same ones get each other's requests.
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(http[-2]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(grpc[-2]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    }
    for name, value in flags.items():
        environ.setdefault(name, value)


@contextlib.contextmanager
def ports_held(environ: Mapping[str, str]) -> Iterator[None]:
    """Keep other servers, which look for free blocks of ports, from those that the flags name.

    Serve binds its own in them only seconds later. One port in each that is bound makes a block not free.
    """
    with contextlib.ExitStack() as stack:
        for name in _BEFORE_HELD:
            if name in environ:
                held = stack.enter_context(socket.socket())
                with contextlib.suppress(OSError):  # it was exported, and what follows it is another's
                    held.bind((LOOPBACK, int(environ[name]) + 1))
        yield


def plain_front(environ: MutableMapping[str, str]) -> None:
    """Set Serve's flags for its own proxy, where there is no HAProxy; exported values win."""
    environ.pop(FRONT_HOST, None)  # of another server that this shell was prepared for
    flags = _OF_ANY_FRONT | {"RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"}
    for name, value in flags.items():
        environ.setdefault(name, value)


def launch(binary: str, folder: str, host: str, *words: str) -> None:
    """Mend the configuration that is named among the command's words, then become HAProxy.

    HAProxy ends with the process that started it, so that none stays on the port without its manager.
    """
    try:
        for word in words:
            if word.endswith(".cfg"):
                path = Path(word)
                mended = path.with_name(path.name + ".mended")
                mended.write_text(mend(path.read_text(), pages=page_paths(Path(folder)), host=host))
                mended.replace(path)
    except FrontEndError as error:
        failure_path(Path(folder)).write_text(str(error))
        sys.exit(str(error))
    end_with_parent()
    os.execv(binary, [binary, *words])  # noqa: S606 no shell


def failure_path(folder: Path) -> Path:
    """Return the file in which the launcher writes why it did not start HAProxy."""
    return folder / "front-failure"


def last_words(folder: Path) -> str | None:
    """Return the last words of the HAProxy that Serve started last, if it ended at once; else None.

    Serve has each write its stderr to a file beside the admin socket, and removes those of earlier proxies.
    """
    with contextlib.suppress(OSError, ValueError):
        newest = max(folder.rglob("admin.sock.*.stderr.log"), key=lambda path: path.stat().st_mtime)
        text = newest.read_text(errors="replace")
        if _ENDED.search(text) and (alert := _ALERT.search(text)):
            return alert[1]
    return None


def page_paths(folder: Path) -> dict[int, Path]:
    return {status: folder / f"{status}.json" for status in ERRORS}


def mend(text: str, *, pages: Mapping[int, Path], host: str) -> str:
    """Return the configuration that we want. Raises FrontEndError where Ray writes it otherwise."""
    if text.startswith(_MARK):
        return text
    config = _Config(text)
    config.replace("defaults", r"timeout client .*", r"\g<0>", f"timeout http-request {REQUEST_TIMEOUT_S}s")
    # While a body is spliced, HAProxy does not notice that its client leaves.
    config.replace(
        "defaults", r"option splice-request", "option http-buffer-request", "option http-ignore-probes"
    )
    for status in (502, 503):
        config.replace("defaults", rf"errorfile {status} .*")
    config.replace("defaults", r"errorfile 504 .*", *_errors(pages))
    config.replace("frontend prometheus", r"bind :(\d+)", rf"bind {LOOPBACK}:\1")
    config.replace("listen stats", r"bind \*:(\d+)", rf"bind {LOOPBACK}:\1")
    config.extend("global", f"tune.http.maxhdr {N_HEADERS}")
    n_most = int(config.find("global", r"maxconn (\d+)")[1])
    config.replace(
        "frontend http_frontend",
        r"bind \S+:(\d+)",
        rf"bind {_listening(host)}:\1",
        # No source takes all connections: beyond half of them it gets 429, beyond three quarters nothing.
        "stick-table type ipv6 size 64k expire 1m store conn_cur",
        "tcp-request connection track-sc0 src",
        f"tcp-request connection reject if {{ sc0_conn_cur gt {n_most * 3 // 4} }}",
        f"http-request set-header {CLIENT_HEADER} %[src]",
        *_request_id(),
        "http-request deny deny_status 429 "
        f"if {{ sc0_conn_cur gt {n_most // 2} }} !{{ path_end {' '.join(PROBES)} }}",
        f"http-request return status 431 content-type application/json file {pages[431]} {_CLOSE} "
        f"if {{ req.hdrs,length gt {HEADER_BYTES} }}",
    )
    config.extend(
        "backend http-",
        # Who reads a stream on gets the process that has it; a client may have chosen its id.
        # Under its key's digest: nobody else can say that it is elsewhere.
        "stick-table type string len 128 size 16k expire 1h",
        "http-request set-var(txn.bearer) req.hdr(authorization)",
        "http-request set-var(txn.api_key) req.hdr(x-api-key)",
        "http-request set-var(txn.reader) str(.),concat(,txn.bearer,.),concat(,txn.api_key),sha1,hex",
        "stick store-request req.hdr(x-cobali-stream),concat(.,txn.reader) "
        "if METH_POST { req.hdr(x-cobali-stream) -m found }",
        "stick store-response res.hdr(x-cobali-stream),concat(.,txn.reader)",
        "stick match path,field(-1,/),concat(.,txn.reader) if { path_sub /v1/streams/ }",
    )
    # No application is there: not yet, or no more.
    config.replace(
        "backend default_backend", r"http-request return status 404 .*", "http-request deny deny_status 503"
    )
    return f"{_MARK}\n{config.text()}"


def _listening(host: str) -> str:
    """Return an address as HAProxy has it: what looks like IPv6 must say so."""
    return f"ipv6@{host}" if ":" in host else host


def _body(status: int) -> bytes:
    from cobali_ray.api.door.faults import Fault

    kind, code, message = ERRORS[status]
    return Fault(status=status, type=kind, message=message, code=code).body_bytes


def raw_answer(status: int) -> bytes:
    """Return an error of ERRORS as it goes over the wire."""
    body = _body(status)
    head = f"HTTP/1.1 {status} \r\nconnection:close\r\ncontent-type:application/json\r\ncontent-length:"
    return f"{head}{len(body)}\r\n\r\n".encode() + body


def _errors(pages: Mapping[int, Path]) -> Iterable[str]:
    """Give HAProxy's own errors the shape of the API's."""
    for status, path in pages.items():
        later = " hdr retry-after 1" if status in {429, 503} else ""
        if status != 431:  # no error of HAProxy's own
            yield f"http-error status {status} content-type application/json file {path} {_CLOSE}{later}"


def _request_id() -> Iterable[str]:
    """Give every request one id, the client's own if it is sane, and every answer the same one."""
    yield "http-request set-var(txn.request_id) req.fhdr(x-request-id)"
    yield (
        "http-request set-var-fmt(txn.request_id) req_%[uuid(),regsub(-,,g)] "
        f"if !{{ var(txn.request_id) -m reg ^{SANE_ID.pattern}$ }}"
    )
    yield "http-request set-header x-request-id %[var(txn.request_id)]"
    if_known = "if { var(txn.request_id) -m found }"
    yield f"http-after-response set-header x-request-id %[var(txn.request_id)] {if_known}"


class _Config:
    """HAProxy's configuration as sections of lines; a line at the margin opens one."""

    def __init__(self, text: str) -> None:
        self._sections: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in text.splitlines():
            if line[:1].strip():
                lines = self._sections.setdefault(line.strip(), [])
            elif line.strip():
                lines.append(line.strip())

    def find(self, section: str, pattern: str) -> re.Match[str]:
        """Return the one line of `section` that matches."""
        lines = self._sections.get(section, ())
        matches = [match for line in lines if (match := re.fullmatch(pattern, line))]
        if len(matches) != 1:
            raise FrontEndError(
                f"HAProxy's configuration has {len(matches)} lines like {pattern!r} under {section!r}, not "
                "one: cobali_ray does not know this version of Ray"
            )
        return matches[0]

    def replace(self, section: str, pattern: str, *lines: str) -> None:
        r"""Put `lines` where the one line of `section` stands that matches; they may name its groups."""
        match = self.find(section, pattern)
        there = self._sections[section]
        place = there.index(match[0])
        there[place : place + 1] = [match.expand(line) for line in lines]

    def extend(self, section: str, *lines: str) -> None:
        """Put `lines` at the end of each section whose name begins so; there may be none."""
        for name, inside in self._sections.items():
            if name.startswith(section):
                inside.extend(lines)

    def text(self) -> str:
        lines = []
        for section, inside in self._sections.items():
            lines += [section, *(f"    {line}" for line in inside)]
        return "\n".join([*lines, ""])
