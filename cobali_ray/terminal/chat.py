"""`cobali chat`: talk to a model in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from cobali_ray.command_line import Key
from cobali_ray.errors import CobaliError, ConfigError
from cobali_ray.terminal.asking import AnswerEnd, AnswerPiece, AnswerWait, ServerClient
from cobali_ray.terminal.conversation import Conversation, read_setting
from cobali_ray.terminal.drawing import Drawing, numbers_of
from cobali_ray.terminal.lines import Command, command_in, edit_lines, piped_text, read_text
from cobali_ray.terminal.servers import Model, Url, server_for

PATH: Final = "/v1/chat/completions"
COMMANDS: Final = {
    "help": ("", "show this"),
    "new": ("", "start a new conversation; system prompt and settings stay"),
    "retry": ("", "ask the last question again"),
    "system": ("TEXT", "set the system prompt; `off` removes it, no TEXT shows it"),
    "set": ("NAME=VALUE", "set a request parameter (temperature=0.2); NAME= unsets it"),
    "model": ("NAME", "switch to another model; no NAME lists them"),
    "save": ("FILE", "save the conversation to a file"),
    "load": ("FILE", "continue a saved conversation"),
    "exit": ("", "leave; Ctrl-D, or Ctrl-C twice, does the same"),
}


def chat(
    model: Model = None,
    url: Url = None,
    key: Key = None,
    system: Annotated[str, typer.Option(help="The system prompt.", show_default=False)] = "",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of every request; repeatable."),
    ] = None,
) -> None:
    """Talk to a model in the terminal, on a running server or on one started for the conversation.

    Ctrl-C stops an answer. Piped input is one question; its answer is printed as plain text.

    Examples:
      cobali chat
      cobali chat ollama://qwen2.5:0.5b --set temperature=0.2
      cobali chat --url http://10.0.0.5:8000 --system "Answer in one sentence."
      git diff | cobali chat --system "Write a commit message for this diff."
    """
    settings = dict(read_setting(text) for text in setting or [])
    piped = not sys.stdin.isatty()
    question = piped_text().strip() if piped else ""
    if piped and not question:
        raise ConfigError("stdin", "it has no question")
    console = Console(stderr=piped)
    with server_for(model, url=url, key=key, console=console) as (asker, name):
        conversation = Conversation(name, system, settings)
        if piped:
            conversation.ask(question)
            print_answer(asker, PATH, conversation.body())
            return
        save_history = edit_lines([f"/{word}" for word in COMMANDS])
        try:
            ChatLoop(asker, conversation, console, input).run()
        finally:
            save_history()


def print_answer(asker: ServerClient, path: str, body: dict[str, Any]) -> None:
    """Print an answer as plain text while it comes, without its reasoning. Its last line ends in any case."""
    last = ""
    try:
        with closing(asker.stream(path, body)) as events:
            for event in events:
                if isinstance(event, AnswerPiece) and event.text:
                    typer.echo(event.text, nl=False)
                    sys.stdout.flush()
                    last = event.text
    finally:
        if last and not last.endswith("\n"):
            typer.echo()


class ChatLoop:
    """The loop: read, ask, draw. `ask` reads a line after a prompt, as `input` does."""

    def __init__(
        self, asker: ServerClient, conversation: Conversation, console: Console, ask: Callable[[str], str]
    ) -> None:
        self._asker, self._conversation, self._console, self._ask = asker, conversation, console, ask
        self._unanswered: str | None = None
        """A question that got no answer, for /retry."""

    def run(self) -> None:
        """Talk until somebody leaves. Raises CobaliError for settings that the server refuses."""
        if self._conversation.settings:
            self._set(self._conversation.settings)
        self._note(f"{self._conversation.model} at {self._asker.url}. /help lists commands, Ctrl-D leaves.")
        leaves = False
        while True:
            try:
                text = read_text(self._ask)
            except EOFError:
                self._console.print()
                return
            except KeyboardInterrupt:
                self._console.print()
                if leaves:
                    return
                leaves = True
                self._note("Ctrl-C again leaves.")
                continue
            leaves = False
            try:
                command = command_in(text, COMMANDS)
                if command is not None and command.name == "exit":
                    return
                if command is not None:
                    leaves = self._obey(command)
                elif text:
                    leaves = self._answer(text)
            except KeyboardInterrupt:
                leaves = True
                self._note("Ctrl-C again leaves.")
            except CobaliError as error:
                self._console.print(
                    f"[red]Error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True
                )

    def _answer(self, question: str) -> bool:
        """Ask, and draw the answer. Returns whether it was stopped."""
        self._conversation.ask(question)
        answer, ending, stopped = "", AnswerEnd(), False
        try:
            events = self._asker.stream(PATH, self._conversation.body())
            with closing(events), Drawing(self._console) as drawing:
                for event in events:
                    if isinstance(event, AnswerEnd):
                        ending = event
                        continue
                    if isinstance(event, AnswerWait):
                        drawing.wait(event)
                        continue
                    answer += event.text
                    if event.reasoning:
                        drawing.think(event.reasoning)
                    if event.text:
                        drawing.say(event.text)
        except KeyboardInterrupt:
            stopped = True
        except CobaliError:
            self._unanswered = self._conversation.take_back()
            raise
        self._conversation.take(answer)
        self._unanswered = None
        self._note(numbers_of(ending, stopped=stopped))
        if ending.ignored:
            self._note(f"The server does not know {ending.ignored}.")
        self._console.print()
        return stopped

    def _obey(self, command: Command) -> bool:
        """Do what a command says. Returns whether an answer was stopped by it. Raises CobaliError."""
        conversation, rest = self._conversation, command.rest
        match command.name:
            case "help":
                for name, (what, words) in COMMANDS.items():
                    self._console.print(f"  /{name} {what}".ljust(20), words, highlight=False, markup=False)
                self._note('To send several lines, end each with \\ or put them between """ and """.')
            case "new":
                conversation.messages.clear()
                self._unanswered = None
                self._note("A new conversation.")
            case "retry":
                question = self._unanswered or conversation.take_back()
                if question is None:
                    raise ConfigError("/retry", "nothing has been asked yet")
                return self._answer(question)
            case "system":
                if rest:
                    conversation.system = "" if rest == "off" else rest
                self._note(f"System prompt: {conversation.system or 'none'}")
            case "set":
                if rest:
                    name, value = read_setting(rest, "/set")
                    others = {other: it for other, it in conversation.settings.items() if other != name}
                    self._set(others | ({name: value} if value is not None else {}))
                settings = ", ".join(f"{name}={json.dumps(it)}" for name, it in conversation.settings.items())
                self._note(f"Settings: {settings or 'none; the server decides'}")
            case "model":
                names = self._asker.models()
                if rest and rest not in names:
                    raise ConfigError(
                        "/model", f"the server has no model '{rest}'; it has {', '.join(names)}"
                    )
                conversation.model = rest or conversation.model
                listed = (f"{name} (this one)" if name == conversation.model else name for name in names)
                self._note(f"Models: {', '.join(listed)}")
            case "save" | "load" if not rest:
                raise ConfigError(f"/{command.name}", "name a file")
            case "save":
                conversation.save(Path(rest))
                self._note(f"Saved {len(conversation.messages)} messages in {rest}.")
            case "load":
                conversation.load(Path(rest))
                self._unanswered = None
                self._note(f"Loaded {len(conversation.messages)} messages from {rest}.")
        return False

    def _set(self, settings: dict[str, Any]) -> None:
        """Take settings, if the server would. Raises CobaliError."""
        tried = Conversation(self._conversation.model, settings=settings)
        tried.ask("?")
        ignored = self._asker.check(PATH, tried.body())
        self._conversation.settings = settings
        if ignored:
            self._note(f"The server does not know {ignored}.")

    def _note(self, text: str) -> None:
        if text:
            self._console.print(text, style="dim", markup=False, highlight=False)
