"""The `cobali` command: parse, call, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cobali_ray import __version__
from cobali_ray.command_line import given_settings, line_of
from cobali_ray.errors import CobaliError, ConfigError, StartError
from cobali_ray.extras import WORKLOADS
from cobali_ray.lazy import LazyGroup, mend_completion
from cobali_ray.models.completion import complete_model

CONFIG = Path("serve_config.yaml")
USE, MODELS, DEVICES = "Serve and talk", "Models", "Devices"
MEASURE = "Measure and look inside"
"""Panels of `cobali --help`."""


class _Commands(LazyGroup):
    places = {  # noqa: RUF012
        "chat": "cobali_ray.terminal.chat:chat",
        "complete": "cobali_ray.terminal.complete:complete",
        "batch": "cobali_ray.terminal.batch:app",
        "ps": "cobali_ray.actors.servers:ps",
        "env": "cobali_ray.actors.cluster:env",
        "models": "cobali_ray.models.commands:app",
        "devices": "cobali_ray.engine.device_commands:devices",
        "worker": "cobali_ray.engine.device_commands:worker",
        "run": "cobali_workloads.commands.run:run",
        "bench": "cobali_workloads.commands:app",
        "simulate": "cobali_workloads.commands.simulate:simulate",
        "trace": "cobali_workloads.commands.trace:trace",
    }
    panels = {  # noqa: RUF012
        **dict.fromkeys(("chat", "complete", "batch", "ps", "env"), USE),
        "models": MODELS,
        **dict.fromkeys(("devices", "worker"), DEVICES),
        **dict.fromkeys(("run", "bench", "simulate", "trace"), MEASURE),
    }
    needs = {  # noqa: RUF012
        **dict.fromkeys(("run", "bench", "simulate"), (WORKLOADS, "cobali_workloads")),
        "trace": (WORKLOADS, "cobali_workloads", "perfetto"),
    }
    elsewhere = {  # noqa: RUF012
        **dict.fromkeys(("pull", "download"), "`cobali models pull MODEL` downloads a model"),
        **dict.fromkeys(("list", "ls"), "`cobali models list` lists models, `cobali ps` running servers"),
        "show": "`cobali models show MODEL` shows what a model's file says about itself",
        **dict.fromkeys(("start", "up"), "`cobali serve` starts a server"),
        **dict.fromkeys(
            ("stop", "down"),
            "Ctrl-C stops a server, or `kill PID` with its pid from `cobali ps`; "
            "POST /v1/models/unload unloads a model",
        ),
        **dict.fromkeys(
            ("rm", "remove", "delete"),
            "cobali does not delete models; `cobali models show MODEL` says where the file is",
        ),
        "status": "`cobali ps` shows the servers on this machine and what they are doing",
        "logs": "`cobali serve` says in its first lines where the logs are",
    }


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
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting (docs/settings.md); repeatable."),
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
            help="YAML file with the settings, under args of its first application. "
            f"Default: {CONFIG} in this folder, if there is one."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The same as MODEL.", autocompletion=complete_model, show_default=False)
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: the config's, or 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on. Default: the config's, or 8000.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check settings, files, port and memory, and start nothing."),
    ] = False,
    setting: Setting = None,
) -> None:
    """Serve one model or several until Ctrl-C.

    SIGUSR1 reads the config again and restarts what changed. --check exits with 1 if a start would fail.

    Examples:
      cobali serve
      cobali serve ~/models/mine.gguf --port 8001
      cobali serve ollama://qwen2.5:0.5b --set n_slots=8 --set n_ctx=8192
      cobali serve --check --config /etc/cobali/serve_config.yaml
      cobali serve hf://Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q5_K_M
    """
    from cobali_ray.actors.layout import places
    from cobali_ray.actors.output import failing_as_event
    from cobali_ray.actors.serving import serve_forever
    from cobali_ray.actors.tracing import require_tracing
    from cobali_ray.api.door.keyring import read_keys
    from cobali_ray.engine.opening import check_machine, find_model, make_places
    from cobali_ray.models.builtin import Progress
    from cobali_ray.settings import EngineSettings, read_settings
    from cobali_ray.store.database import check_store

    def options() -> dict[str, Any]:
        if model is not None and model_argument is not None:
            both = f"the model is given twice, {model_argument} and {model}: leave one out"
            raise ConfigError("--model", both)
        return given_settings(setting, model=model or model_argument)

    def address() -> tuple[str, int]:
        http = _read_config(config)[1]
        return host or str(http.get("host") or "127.0.0.1"), _port_of(http) if port is None else port

    def checked_settings() -> EngineSettings:
        settings = read_settings(_read_config(config)[0] | options())
        require_tracing(settings)
        read_keys(settings.api.api_keys, settings.api.api_keys_file)
        return settings

    def read(progress: Progress) -> EngineSettings:
        settings = checked_settings()
        check_store(settings.api.store_place)
        engines = places(settings)
        for place in engines:
            check_machine(place.settings)
            make_places(place.settings)
        for place in engines:
            find_model(place.settings, progress)
        return settings

    if check:
        from cobali_ray.actors.check import show_check

        show_check(lambda: (checked_settings(), *address()))
        return
    with failing_as_event():
        options()  # a mistake on the command line itself is reported first
        at_host, at_port = address()
        serve_forever(read, host=at_host, port=at_port)


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
        raise ConfigError("config", f"{path} is not valid YAML{line_of(error)}") from error
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError("config", f"{path} is not a Serve config: it has no `applications` list") from error
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise ConfigError(
                "config", f"{path}: `{name}` must have NAME: VALUE on each line, without dashes"
            )
    return parts["args"], parts["http_options"]


def _port_of(http: dict[str, Any]) -> int:
    port = http.get("port")
    if port is None:
        return 8000
    if not str(port).isdecimal() or len(str(port)) > 5:
        raise ConfigError("port", f"must be a number, got {port!r}")
    return int(port)


def _log_to_stderr() -> None:
    from cobali_ray.telemetry.log import configure_logging

    configure_logging(level="warning", stream=sys.stderr)  # a command does not show events of an engine


def main() -> None:
    """Run the command; an error becomes one line and exit code 2, or 1 where no setting is at fault."""
    if any(word.endswith("-completion") for word in sys.argv[1:2]):
        mend_completion()
    code = 2
    try:
        sys.exit(app(obj=_log_to_stderr, standalone_mode=False))
    except CobaliError as error:
        message, code = str(error), 1 if isinstance(error, StartError) else 2
    except typer.TyperException as error:
        message = " ".join(error.format_message().split())
    except typer.Abort:
        message = "stopped"
    if message:  # a command without arguments has shown its help instead
        from rich.console import Console
        from rich.markup import escape

        Console(stderr=True).print(f"[red]Error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)
