"""What is taken of a client's headers: how much, and which ids. The front end needs only this of the API."""

from __future__ import annotations

import re
import uuid

HEADER_BYTES = 16 << 10
SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id_of(sent: str) -> str:
    """Return the client's own id if it can stand in a header and a log, else a new one."""
    return sent if SANE_ID.fullmatch(sent) else f"req_{uuid.uuid4().hex}"
