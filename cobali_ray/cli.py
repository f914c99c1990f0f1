"""The `cobali` command: parse, call, print."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cobali_ray import __version__
from cobali_ray.errors import CobaliError, ConfigError, StartError
from cobali_ray.lazy import LazyGroup, mend_completion
from cobali_ray.models.completion import complete_model

CONFIG = Path("serve_config.yaml")


USE, MODELS, MEASURE = "Serve and talk", "Models", "Measure and look inside"
"""Panels of `cobali --help`."""


class _Commands(LazyGroup):
    places = {  # noqa: RUF012
        "chat": "cobali_ray.terminal.chat:chat",
        "complete": "cobali_ray.terminal.complete:complete",
        "ps": "cobali_ray.actors.servers:ps",
        "env": "cobali_ray.actors.cluster:env",
        "models": "cobali_ray.models.commands:app",
        "bench": "cobali_ray.bench.commands:app",
        "simulate": "cobali_ray.bench.commands.simulate:simulate",
        "trace": "cobali_ray.trace.command:trace",
    }
    panels = {  # noqa: RUF012
        **dict.fromkeys(("chat", "complete", "ps", "env"), USE),
        "models": MODELS,
        **dict.fromkeys(("bench", "simulate", "trace"), MEASURE),
    }
    needs = {"simulate": ("bench", "matplotlib")}  # noqa: RUF012


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Serve GGUF models with continuous batching on llama.cpp and Ray Serve.

    Examples:
      cobali serve
      cobali serve hf://Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q5_K_M
      cobali chat
      cobali models list
    """
    if version:
        typer.echo(f"cobali_ray {__version__}")
        raise typer.Exit


Model = Annotated[
    str | None,
    typer.Option(
        help=r"GGUF path, hf://owner/repo\[:QUANT], builtin:NAME, or a name from `cobali models list`.",
        autocompletion=complete_model,
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting from docs/settings.md; repeatable."),
]


@app.command(rich_help_panel=USE)
def serve(
    model_argument: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help=r"GGUF path, hf://owner/repo\[:QUANT], builtin:NAME, or a name from `cobali models list`. "
            "Default: the config's, or builtin:tiny.",
            autocompletion=complete_model,
            show_default=False,
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Serve config whose first application's args are the settings. "
            f"Default: {CONFIG} in this folder, if there is one."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The same as MODEL.", autocompletion=complete_model, show_default=False),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: the config's, or 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on. Default: the config's, or 8000.")
    ] = None,
    dashboard: Annotated[bool, typer.Option(help="Start Ray's dashboard, which needs more memory.")] = False,
    setting: Setting = None,
) -> None:
    """Start Ray and Serve behind the fast front end, and serve until Ctrl-C.

    SIGUSR1 reloads the config and restarts what changed.

    Examples:
      cobali serve
      cobali serve ~/models/mine.gguf --port 8001
      cobali serve ollama://qwen2.5:0.5b --set n_slots=8 --set n_ctx=8192
      cobali serve hf://Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q5_K_M
    """
    from cobali_ray.actors.layout import places
    from cobali_ray.actors.output import failing_as_event
    from cobali_ray.actors.serving import serve_forever
    from cobali_ray.actors.tracing import require_tracing
    from cobali_ray.api.keyring import read_keys
    from cobali_ray.engine.opening import check_machine, find_model
    from cobali_ray.models.builtin import Progress
    from cobali_ray.settings import EngineSettings, read_settings

    said: dict[str, Any] = {}

    def read(progress: Progress) -> EngineSettings:
        settings = read_settings(_read_config(config)[0] | said)
        require_tracing(settings)
        if settings.api_keys_file is not None:
            read_keys(settings.api_keys_file)
        found = places(settings)
        for place in found:
            check_machine(place.settings)
        for place in found:
            find_model(place.settings, progress)
        return settings

    with failing_as_event():
        if model is not None and model_argument is not None:
            both = f"the model is given twice, {model_argument} and {model}: leave one out"
            raise ConfigError("--model", both)
        said = _said(setting, model=model or model_argument)
        http = _read_config(config)[1]
        serve_forever(
            read,
            host=host or str(http.get("host", "127.0.0.1")),
            port=port or _port_of(http),
            dashboard=dashboard,
        )


def _read_config(path: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first application's args and the http_options of a Serve config file, if there is one."""
    import yaml

    from cobali_ray.settings import read_text

    if path is None and not CONFIG.exists():
        return {}, {}
    path = path or CONFIG
    text = read_text("config", path)
    try:
        content = yaml.safe_load(text) or {}
        parts = {
            "args": content["applications"][0].get("args") or {},
            "http_options": content.get("http_options") or {},
        }
    except RecursionError:
        raise ConfigError("config", f"{path} is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # the latter: an impossible date
        raise ConfigError("config", f"{path} is not valid YAML{_line_of(error)}") from error
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError("config", f"{path} is not a Serve config: it has no `applications` list") from error
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise ConfigError(
                "config", f"{path}: `{name}` must have NAME: VALUE on each line, without dashes"
            )
    return parts["args"], parts["http_options"]


def _port_of(http: dict[str, Any]) -> int:
    port = http.get("port", 8000)
    if not str(port).isdecimal() or len(str(port)) > 5:
        raise ConfigError("port", f"must be a number, got {port!r}")
    return int(port)


def _line_of(error: Exception) -> str:
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
    import yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("--set", "expected NAME=VALUE, but there is no =")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(name.strip(), f"the value is not valid YAML{_line_of(error)}") from error
    except (ValueError, RecursionError):  # an impossible date, a number too long, brackets without end
        raise ConfigError(name.strip(), "the value is not valid YAML") from None


@app.command(rich_help_panel=MEASURE)
def run(
    prompts: Annotated[
        Path, typer.Option(help="File of prompts, separated by blank lines.", exists=True, dir_okay=False)
    ],
    model: Model = None,
    mode: Annotated[
        Literal["seq", "cont"], typer.Option(help="One request at a time, or continuous batching.")
    ] = "cont",
    max_slots: Annotated[int, typer.Option(min=1, max=256, help="Requests computed together.")] = 16,
    ctx: Annotated[
        int, typer.Option(help="KV cells in total; a request gets ctx / max-slots tokens.")
    ] = 16384,
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
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only this many prompts, the first ones.")
    ] = None,
    setting: Setting = None,
    show: Annotated[bool, typer.Option("--show", help="Print the answers.")] = False,
    json_out: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; tables go to stderr.")
    ] = False,
) -> None:
    """Run a file of prompts through the engine in process, with greedy sampling, and report times.

    Examples:
      cobali run --prompts workloads/prompts_16.txt --baseline --ignore-eos
      cobali run --prompts mine.txt --model qwen2.5:0.5b --max-new 32 --show
    """
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

    configure_logging(level="warning", stream=sys.stderr)  # nobody asked for an engine's events


def main() -> None:
    """Run the command; an error becomes one line and exit code 2, or 1 where no setting is at fault."""
    if any(word.endswith("-completion") for word in sys.argv[1:2]):
        mend_completion()
    code = 2
    try:
        sys.exit(app(obj=_log_to_stderr, standalone_mode=False))
    except CobaliError as error:
        said, code = str(error), 1 if isinstance(error, StartError) else 2
    except typer.TyperException as error:
        said = " ".join(error.format_message().split())
    except typer.Abort:
        said = "stopped"
    if said:  # a command without arguments has shown its help instead
        from rich.console import Console
        from rich.markup import escape

        Console(stderr=True).print(f"[red]Error:[/red] {escape(said)}", highlight=False, soft_wrap=True)
    sys.exit(code)
