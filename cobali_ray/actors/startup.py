"""Why a part of the application does not start, as Serve tells it. Ray is imported when it is asked."""

from __future__ import annotations

import re

DIED = "its process died"
_FAILED = "failed to start"
"""In the words of Serve's for what is tried again."""


def reason(message: str) -> str:
    """Return why a part of the application did not start: the last line, below the tracebacks of Serve's."""
    last = message.strip().splitlines()[-1]
    if "ActorDiedError" in last:
        return DIED
    return re.sub(r"^(\w+\.)+\w+: ", "", last)


def why_down(app: str, deployment: str) -> str:
    """Return why a deployment could not be started when that was tried last; "" if it was not, or could be.

    Blocks.
    """
    from ray import serve

    found = serve.status().applications.get(app)
    known = None if found is None else found.deployments.get(deployment)
    return reason(known.message) if known is not None and _FAILED in known.message else ""
