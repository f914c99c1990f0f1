"""`cobali devices` and `cobali worker`: what layers can lie on, and a process that lends a device."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cobali_ray.command_line import given_settings
from cobali_ray.models.completion import complete_model

if TYPE_CHECKING:
    from cobali_ray.backend.devices import ComputeDevice
    from cobali_ray.backend.fit import MemoryNeed
    from cobali_ray.backend.tunnel_key import TunnelAddress

DEFAULT_PORT = 50052
"""Of llama.cpp's own rpc-server."""


def devices(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Also show how much memory this model would take on each device.",
            autocompletion=complete_model,
            show_default=False,
        ),
    ] = None,
    *,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any setting from docs/settings.md, such as devices or n_ctx."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the devices that layers can be put on, with their memory, and what a model would take there.

    Nothing is loaded; only the header of the model's file is read.

    Examples:
      cobali devices
      cobali devices builtin:tiny --set devices=worker,worker
      cobali devices ~/models/mine.gguf --set n_slots=8 --set n_ctx=8192
    """
    from cobali_ray.backend.devices import holds_layers, local_devices, open_devices
    from cobali_ray.backend.fit import fitting, need_here, needs, refusal_of
    from cobali_ray.engine.context import autos
    from cobali_ray.engine.opening import llama_config, model_path
    from cobali_ray.errors import ConfigError
    from cobali_ray.settings import read_settings

    values = given_settings(setting, model=model)
    settings = read_settings(values)
    path = model_path(settings)
    if path is None:
        raise ConfigError("model", f"{settings.model} is computed on no device")
    config = llama_config(settings, path)
    opened = open_devices(config)
    try:
        if config.fewer_slots:
            with contextlib.suppress(ConfigError):  # where none fits, the table shows by how much
                config = fitting(config, opened)
        of_devices = needs(config, opened) if model is not None else None
        all_devices = [*local_devices(), *(device for device in opened.used if device.lent)]
        here = None if of_devices is None else need_here(config, opened)
        all_needs = [*(of_devices or ()), *([here] if here else ())]
        rows = [_row(device, holds_layers(device), all_needs) for device in all_devices]
        refusal = None if of_devices is None else refusal_of(config, of_devices)
    finally:
        opened.close()
    if as_json:
        typer.echo(json.dumps({"devices": rows, "refusal": refusal and refusal.message}, indent=2))
        return
    _print(rows, model=model is not None)
    if model is not None and autos(settings):
        typer.echo(f"With {config.n_slots} slots of {config.n_ctx} tokens.")
    if refusal is not None:
        typer.echo(f"It does not fit: {refusal.message}.")
    elif model is not None and not opened.used:
        typer.echo("No layers lie on a device: the CPU computes all of them.")


def _row(device: ComputeDevice, able: bool, needs: list[MemoryNeed]) -> dict[str, Any]:
    free, total = device.memory
    row: dict[str, Any] = {
        "name": device.name, "kind": device.kind, "description": device.description, "holds_layers": able,
        "free_bytes": free, "total_bytes": total,
    }  # fmt: skip
    for need in needs:
        if need.device == device.name:
            row |= {
                "weights_bytes": need.weights, "cells_bytes": need.cells, "buffers_bytes": need.buffers,
                "fits": need.fits,
            }  # fmt: skip
    return row


def _print(rows: list[dict[str, Any]], *, model: bool) -> None:
    from rich.table import Table

    from cobali_ray.models.commands import list_console

    table = Table(box=None, pad_edge=False)
    for heading in (
        "device",
        "kind",
        "free",
        "of",
        *(("weights", "cells", "buffers", "fits") if model else ()),
    ):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it is")
    for row in rows:
        cells = [row["name"], row["kind"], _size(row["free_bytes"]), _size(row["total_bytes"])]
        if model:
            cells += [_size(row.get(name)) for name in ("weights_bytes", "cells_bytes", "buffers_bytes")]
            cells.append({True: "yes", False: "no", None: "-"}[row.get("fits")])
        table.add_row(*cells, row["description"])
    list_console().print(table)


def _size(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else f"{n_bytes / (1 << 20):,.1f} MiB"


def worker(
    *,
    build: Annotated[bool, typer.Option(help="Build what workers need, and exit.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            help=f"Port on 127.0.0.1. Default: {DEFAULT_PORT}; with --listen, one that is free.",
            min=1,
            max=65535,
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Listen here for an engine on another machine, through an encrypted tunnel.",
            show_default=False,
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="The tunnel's key, which the engine needs as worker_key_file; created if it does not exist.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Device to lend, as `cobali devices` names it. Default: the CPU.", show_default=False
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads to use. Default: one per physical core.", min=1, show_default=False),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            help="Memory of the CPU to lend, in MiB. Default: what is free.",
            min=16,
            metavar="MIB",
            show_default=False,
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Folder that keeps large weights by their hash, so that an engine need not send them again. "
                "Default: none; with --listen, weights in the cache folder of cobali_ray."
            ),
            show_default=False,
        ),
    ] = None,
) -> None:
    """Lend a device of this machine to one engine, until Ctrl-C.

    Without --listen, only engines on this machine can use it. With --listen, an engine on another machine can
    if it has the key file, and anyone who has that file can run code here.

    Examples:
      cobali worker --build
      cobali worker --port 50052 --memory 4096
      cobali serve --set devices=127.0.0.1:50052
      cobali worker --listen 0.0.0.0:50053 --key-file ~/worker.key --device CUDA0
      cobali serve --set devices=gpu-box:50053 --set worker_key_file=~/worker.key
    """
    from cobali_ray.backend import rpc_build
    from cobali_ray.backend.worker import serve
    from cobali_ray.engine.opening import worker_cache
    from cobali_ray.ports import free_port

    if build:
        typer.echo(rpc_build.built(worker_cache()))
        return
    lent = "the CPU" if device is None else device
    if listen is None and key_file is None:
        tunnel, port = None, port or DEFAULT_PORT
        where = f"127.0.0.1:{port}: --set devices=127.0.0.1:{port}"
    else:
        tunnel, port = _tunnel(listen, key_file), port or free_port()
        where = (
            f"{listen}, through a tunnel: --set devices=THIS_MACHINE:{tunnel.port} --set worker_key_file=FILE"
        )
        cache_dir = cache_dir or worker_cache().parent / "weights"
    typer.echo(f"Lending {lent} to one engine at {where}. Ctrl-C stops.")
    serve(
        port,
        cache=worker_cache(),
        device=device,
        n_threads=threads,
        memory_bytes=None if memory is None else memory << 20,
        weights=None if cache_dir is None else cache_dir.expanduser(),
        tunnel=tunnel,
    )


def _tunnel(listen: str | None, key_file: Path | None) -> TunnelAddress:
    """Return where engines come in, with the key, which is made if need be. Raises ConfigError."""
    from cobali_ray.backend.endpoint import address_of
    from cobali_ray.backend.tunnel_key import TunnelAddress, TunnelKey, make_key
    from cobali_ray.errors import ConfigError
    from cobali_ray.ports import require_free

    if listen is None or key_file is None:
        raise ConfigError("--listen", "needs --key-file, and the other way round")
    try:
        host, port = address_of(listen)
        if make_key(key_file):
            typer.echo(f"A new key is in {key_file}. Copy it to the engine's machine, for its account alone.")
    except ValueError as error:
        raise ConfigError("--listen", str(error)) from None
    except OSError as error:
        raise ConfigError("--key-file", f"{key_file} cannot be made: {error.strerror}") from None
    require_free(host, port)
    return TunnelAddress(host, port, TunnelKey.read(key_file, "--key-file"))
