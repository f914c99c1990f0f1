"""The application on Serve: deployed, waited for, and deployed anew with other settings or code."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cobali_ray.actors.layout import places, versions
from cobali_ray.actors.node import one_line
from cobali_ray.actors.output import EventOutput
from cobali_ray.actors.startup import reason
from cobali_ray.errors import CobaliError, StartError
from cobali_ray.settings import EngineSettings

if TYPE_CHECKING:
    from ray.serve.schema import ApplicationStatusOverview

APP_NAME = "cobali"
POLL_S = 0.1
PACKAGE = Path(__file__).parents[1]
LEFT_OUT = frozenset({"__pycache__"})


def deploy(settings: EngineSettings, *, code: str) -> None:
    """Have engines and ingress started, side by side."""
    from ray import serve

    from cobali_ray.actors.app import join

    target = serve.RunTarget(join(settings, code=code, alone=True), name=APP_NAME, route_prefix="/")
    with contextlib.suppress(TimeoutError):
        serve.run_many(
            [target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
        )


def wait_loaded(settings: EngineSettings, look: Callable[[], None]) -> None:
    """Wait until the engines are open; `look` at what else may fail. Raises StartError."""
    awaited = [place.deployment for place in places(settings)]
    while True:
        look()
        app = _overview()
        deployments = app.deployments if app is not None else {}
        if all(name in deployments and deployments[name].status == "HEALTHY" for name in awaited):
            return
        time.sleep(POLL_S)


def _overview() -> ApplicationStatusOverview | None:
    """Return the application's status. Raises StartError if a part of it does not start."""
    from ray import serve
    from ray.serve.schema import ApplicationStatus

    app = serve.status().applications.get(APP_NAME)
    if app is not None and app.status is ApplicationStatus.DEPLOY_FAILED:
        messages = {name: d.message.strip() for name, d in app.deployments.items() if d.message.strip()}
        name, message = next(iter(messages.items()), ("The application", app.message.strip()))
        raise StartError(name.capitalize(), reason(message))
    return app


def renewed(
    settings: EngineSettings,
    reread: Callable[[], EngineSettings],
    output: EventOutput,
    *,
    code: tuple[str, str],
    in_time: Callable[[EngineSettings], contextlib.AbstractContextManager[None]],
    goes_on: Callable[[], bool],
) -> EngineSettings:
    """Deploy what the settings are now and return them; what cannot be used or does not start is undone.

    `code` is which one runs, and which one is installed now.
    Nothing that Ray or Serve raise meanwhile ends the server. The wait is over as soon as `goes_on` says no:
    the server is to stop, or to read its settings again.
    """
    different: list[str] = []
    try:
        new_settings = reread()
        before, after = versions(settings, code[0]), versions(new_settings, code[1])
        different = sorted(name for name in before | after if before.get(name) != after.get(name))
        if different:
            with in_time(new_settings):
                deploy(new_settings, code=code[1])
                _wait_running(goes_on)
    except Exception as error:
        why = str(error) if isinstance(error, CobaliError) else one_line(error)
        output.say("settings_kept", level="warning", error=why)
        if different:
            _put_back(settings, output, code=code[0])
        return settings
    output.say("settings_read", changed=different)
    return new_settings


def _wait_running(goes_on: Callable[[], bool]) -> None:
    """Wait until what was deployed has taken its place. Raises StartError if it does not start."""
    while goes_on():
        app = _overview()
        if app is not None and app.status == "RUNNING":
            return
        time.sleep(POLL_S)


def _put_back(settings: EngineSettings, output: EventOutput, *, code: str) -> None:
    """Deploy the settings and code from before. If that fails as well, what still runs continues."""
    try:
        deploy(settings, code=code)
    except Exception as error:
        detail = f"They could not be put back: {one_line(error)}"
        output.say("notice", level="error", detail=detail)


def code_version(package: Path = PACKAGE) -> str:
    """Return a name for the files of the package as they are now, by their sizes and times."""
    seen = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        # A folder's time changes with the first cache that is made in it.
        if LEFT_OUT.isdisjoint(path.parts) and not path.is_dir():
            with contextlib.suppress(OSError):  # it is being replaced: the next look sees the new one
                stat = path.stat()
                seen.update(f"{path.relative_to(package)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return seen.hexdigest()[:16]
