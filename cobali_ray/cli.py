"""The `cobali` command: parse, call, print."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml

from cobali_ray import __version__
from cobali_ray.errors import CobaliError, ConfigError
from cobali_ray.extras import require_extra
from cobali_ray.lazy import LazyGroup

CONFIG = Path("serve_config.yaml")


class _Commands(LazyGroup):
    places = {  # noqa: RUF012
        "models": "cobali_ray.models.commands:app",
        "trace": "cobali_ray.trace.command:trace",
        "env": "cobali_ray.actors.cluster:env",
        "ps": "cobali_ray.actors.listening:ps",
        "bench": "cobali_ray.bench.commands:app",
        "simulate": "cobali_ray.bench.commands.simulate:simulate",
    }

    def load(self, name: str) -> Any:
        """Import a command. Raises MissingExtraError for one that has nothing to plot with."""
        if name == "simulate":
            require_extra("bench", "matplotlib")
        return super().load(name)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Serve GGUF models with continuous batching on llama.cpp and Ray Serve."""
    if version:
        typer.echo(f"cobali_ray {__version__}")
        raise typer.Exit


Model = Annotated[str | None, typer.Option(help="GGUF path, hf://owner/repo/file.gguf, or builtin:NAME.")]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting of the README's table; repeatable."),
]


@app.command()
def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            help="Serve config whose first application's args are the settings. "
            f"Default: {CONFIG} in this folder, if there is one."
        ),
    ] = None,
    model: Model = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; else the config's.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; else the config's.")] = None,
    dashboard: Annotated[bool, typer.Option(help="Start Ray's dashboard (more memory).")] = False,
    setting: Setting = None,
) -> None:
    """Start Ray and Serve on the fast front end and serve until Ctrl-C.

    SIGUSR1 reads the config again and restarts what has changed.
    """
    from cobali_ray.actors.layout import places
    from cobali_ray.actors.serving import serve_forever
    from cobali_ray.actors.tracing import require_tracing
    from cobali_ray.engine.opening import model_path
    from cobali_ray.models.commands import progress_bars
    from cobali_ray.settings import EngineSettings, read_settings

    said = _said(setting, model=model)

    def reread() -> EngineSettings:
        settings = read_settings(_read_config(config)[0] | said)
        require_tracing(settings)
        with progress_bars() as progress:
            for place in places(settings):
                model_path(place.settings, progress)
        return settings

    http = _read_config(config)[1]
    serve_forever(
        reread(),
        host=host or http.get("host", "127.0.0.1"),
        port=port or int(http.get("port", 8000)),
        dashboard=dashboard,
        reread=reread,
    )


def _read_config(path: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first application's args and the http_options of a Serve config file, if there is one."""
    if path is None and not CONFIG.exists():
        return {}, {}
    path = path or CONFIG
    if not path.exists():
        raise ConfigError("config", f"there is no file {path}")
    try:
        content = yaml.safe_load(path.read_text()) or {}
        return dict(content["applications"][0].get("args") or {}), dict(content.get("http_options") or {})
    except yaml.YAMLError as error:
        raise ConfigError("config", f"{path} is no YAML{_line_of(error)}") from error
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError("config", f"{path} is no Serve config: {error}") from error


def _line_of(error: yaml.YAMLError) -> str:
    """Say where YAML breaks off. Its own message quotes the line, which may hold a key."""
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f": line {mark.line + 1}, column {mark.column + 1}"


def _said(settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """Return what the command line says; it wins over the environment, which wins over the file."""
    said = dict(_assignment(text) for text in settings or [])
    said |= {name: value for name, value in options.items() if value is not None}
    for name in said:
        os.environ.pop(f"COBALI_{name.upper()}", None)
    return said


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("--set", "expected NAME=VALUE, and there is no =")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(name.strip(), f"the value is no YAML{_line_of(error)}") from error


@app.command()
def run(
    prompts: Annotated[
        Path, typer.Option(help="File of prompts, separated by blank lines.", exists=True, dir_okay=False)
    ],
    model: Model = None,
    mode: Annotated[
        Literal["seq", "cont"], typer.Option(help="One request at a time, or continuous batching.")
    ] = "cont",
    max_slots: Annotated[int, typer.Option(min=1, max=256, help="Requests computed together.")] = 16,
    ctx: Annotated[int, typer.Option(help="KV cells in all: ctx / max-slots tokens a request.")] = 16384,
    prefill_chunk_tokens: Annotated[
        int, typer.Option(min=0, help="Most prompt tokens of one request in one tick; 0: whole prompts.")
    ] = 512,
    max_new: Annotated[int, typer.Option(min=1, help="Most new tokens per prompt.")] = 64,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Run sequentially first and print the speed-up.")
    ] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Let every answer run to --max-new tokens.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first so many prompts.")] = None,
    setting: Setting = None,
    show: Annotated[bool, typer.Option("--show", help="Print the answers.")] = False,
    json_out: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; tables go to stderr.")
    ] = False,
) -> None:
    """Run a prompts file through the engine in process, greedily, and report times."""
    from rich.console import Console

    from cobali_ray.run import RunOptions, run_command

    options = RunOptions(
        prompts=prompts,
        sequential=mode == "seq",
        max_slots=max_slots,
        ctx=ctx,
        prefill_chunk=prefill_chunk_tokens,
        max_new=max_new,
        baseline=baseline,
        ignore_eos=ignore_eos,
        limit=limit,
        settings=_said(setting, model=model),
    )
    report = run_command(options, Console(stderr=json_out), show=show)
    if json_out:
        typer.echo(json.dumps(report, indent=2))


def _log_to_stderr() -> None:
    from cobali_ray.telemetry.log import configure_logging

    configure_logging(stream=sys.stderr)


def main() -> None:
    """Run the command; a CobaliError becomes one line and exit code 2."""
    try:
        app(obj=_log_to_stderr)
    except CobaliError as error:
        from rich.console import Console
        from rich.markup import escape

        Console(stderr=True).print(f"[red]Error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
