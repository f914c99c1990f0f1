"""Headers: how much of a client's is taken, which ids it may choose, and how ours quote its words."""

from __future__ import annotations

import re
import uuid
from urllib.parse import quote

CLIENT_HEADER = "x-cobali-client"
"""In which HAProxy says where a request came from, whatever the client wrote there."""
HEADER_BYTES = 16 << 10
SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
MAX_NAMED_FIELDS = 32
MAX_NAME_LENGTH = 64


def request_id_of(sent: str) -> str:
    """Return the client's own id if it can stand in a header and a log, else a new one."""
    return sent if SANE_ID.fullmatch(sent) else f"req_{uuid.uuid4().hex}"


def header_value(names: tuple[str, ...]) -> str:
    """Return names as one header value: client-made text, so quoted, shortened and counted."""
    unique = list(dict.fromkeys(names))
    quoted = [quote(name[:MAX_NAME_LENGTH], safe="[]") for name in unique[:MAX_NAMED_FIELDS]]
    more = [f"and-{len(unique) - MAX_NAMED_FIELDS}-more"] if len(unique) > MAX_NAMED_FIELDS else []
    return ", ".join(quoted + more)
