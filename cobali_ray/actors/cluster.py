"""What Ray's nodes of a cluster have in their environment: `cobali env`, for a `ray start` of your own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from cobali_ray.actors.serving import set_environment
from cobali_ray.errors import ConfigError
from cobali_ray.ports import LOOPBACK

ONE_NODE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_prestart_worker_first_driver"}
"""Of the flags of `cobali serve`, what is for a single node."""

SEE_DEATHS_SOON = {
    # By default a node that is off is noticed after 65 s, and calls that are open to it end after 7 minutes.
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_client_keepalive_time_ms": "2000",
    "RAY_grpc_client_keepalive_timeout_ms": "3000",
}


def cluster_environment(folder: Path, *, host: str = LOOPBACK) -> dict[str, str]:
    environ: dict[str, str] = dict(SEE_DEATHS_SOON)
    set_environment(environ, folder, host=host)
    return {name: value for name, value in environ.items() if name not in ONE_NODE}


def env(
    host: Annotated[str, typer.Option(help="Address that this machine's front end listens on.")] = LOOPBACK,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the front end's files. Default: in ~/.cache/cobali_ray.")
    ] = None,
) -> None:
    """Print the environment for a `ray start` of your own: eval "$(cobali env --host 0.0.0.0)"."""
    folder = folder or Path.home() / ".cache" / "cobali_ray" / "front"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # HAProxy's socket for administrators is in there
        environ = cluster_environment(folder, host=host)
    except OSError as error:
        raise ConfigError("--folder", f"{folder} cannot be written: {error.strerror}") from None
    for name, value in environ.items():
        typer.echo(f"export {name}={shlex.quote(value)}")
