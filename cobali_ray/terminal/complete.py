"""`cobali complete`: have a model go on with a text."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from cobali_ray.command_line import Key
from cobali_ray.errors import ConfigError
from cobali_ray.terminal.chat import print_answer
from cobali_ray.terminal.lines import piped_text
from cobali_ray.terminal.servers import ModelOption, Url, server_for

PATH = "/v1/completions"


def complete(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The text to continue; by default it is read from stdin.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    url: Url = None,
    key: Key = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens to generate. Default: the server's limit.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling temperature; 0 is greedy. Default: the server's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same tokens.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text to stop before; repeatable.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the server's whole answer, with its numbers, as JSON.")
    ] = False,
) -> None:
    """Continue a text with a model, and print the continuation as it is generated.

    The text goes to the model as it is, without a chat template; `cobali chat` asks questions.

    Examples:
      cobali complete "Once upon a time" --max-tokens 40
      cobali complete --temperature 0 --stop "." < begun.txt
      cobali complete "def fib(n):" --model qwen2.5-coder:0.5b --json
    """
    if prompt is None:
        if sys.stdin.isatty():
            raise ConfigError("PROMPT", "give a text to continue, or pipe one in")
        prompt = piped_text()
    if not prompt:
        raise ConfigError("PROMPT", "is empty; give a text to continue")
    own = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "stop": stop or None}
    with server_for(model, url=url, key=key, console=Console(stderr=True)) as (asker, name):
        body: dict[str, Any] = {"model": name, "prompt": prompt}
        body |= {field: value for field, value in own.items() if value is not None}
        if as_json:
            typer.echo(orjson.dumps(asker.answer(PATH, body), option=orjson.OPT_INDENT_2).decode())
        else:
            print_answer(asker, PATH, body)
