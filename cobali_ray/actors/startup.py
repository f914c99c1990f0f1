"""Why a part of the application does not start, by Serve's messages. Ray is imported when it is asked."""

from __future__ import annotations

import re

DIED = "its process died"
_FAILED = "failed to start"
"""In Serve's message of a deployment that it tries to start again."""


def reason(message: str) -> str:
    """Return why a part of the application did not start: the last line, below the tracebacks of Serve's."""
    last = (message.strip() or "Serve gives no reason").splitlines()[-1]
    if "ActorDiedError" in last:
        return DIED
    return re.sub(r"^(\w+\.)+\w+: ", "", last)


def why_down(app: str, deployment: str) -> str:
    """Return why the last try to start a deployment failed; "" if there was none, or it did not fail.

    Blocks.
    """
    from ray import serve

    application = serve.status().applications.get(app)
    status = None if application is None else application.deployments.get(deployment)
    return reason(status.message) if status is not None and _FAILED in status.message else ""
