"""Commands that are imported when they are asked for, so that `--help` and a typo cost next to nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from cobali_ray.errors import ConfigError
from cobali_ray.extras import is_there, require_extra


class LazyGroup(TyperGroup):
    """A group whose commands live elsewhere: until one is asked for, only its docstring is read."""

    places: ClassVar[Mapping[str, str]] = {}
    """By name of the command: `module:function`, or `module:app` for a group."""
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """By name of the command: the extra that it needs to run, and its packages; `--help` needs none."""
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Commands of other programs, and what does the same here."""
    panels: ClassVar[Mapping[str, str]] = {}
    """By name of the command: under which heading help shows it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, place in self.places.items():
            about = _docstring(*place.split(":"))
            self.add_command(TyperCommand(name, help=about, rich_help_panel=self.panels.get(name)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is to run, import it, and do what the process does before any command."""
        if args and args[0] in self.elsewhere and args[0] not in self.commands:
            raise ConfigError(args[0], f"there is no such command; {self.elsewhere[args[0]]}")
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name in self.places:
            command = self.load(name)
        if ctx.obj is not None and not ctx.resilient_parsing and not isinstance(command, LazyGroup):
            ctx.obj()
        return name, command, rest

    def load(self, name: str) -> Any:
        """Import a command. Raises MissingExtraError where its whole package is missing."""
        module, attribute = self.places[name].split(":")
        if name in self.needs and not is_there(module):
            require_extra(*self.needs[name])
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            return typer.main.get_command(command)
        if name in self.needs:
            command = _needing(self.needs[name], command)
        alone = typer.Typer(add_completion=False)
        alone.command(name)(command)
        return typer.main.get_command(alone)


def _needing(needs: tuple[str, ...], command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        require_extra(*needs)
        return command(*args, **kwargs)

    return run


_ZSH_END = "compdef %(complete_func)s %(prog_name)s"
_ZSH_FIRST = """if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  %(complete_func)s
fi"""
_FISH = """complete --command %(prog_name)s --no-files --arguments "(
env %(autocomplete_var)s=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
    _TYPER_COMPLETE_ARGS=(commandline -cp) %(prog_name)s | string match -r .+
or __fish_complete_path (commandline -ct))"
"""


def mend_completion() -> None:
    """Mend the scripts that typer writes for shells.

    Bash is to take builtin:tiny, and all with colons, as one word. Zsh loads the script at the first Tab,
    which is to complete, too. Fish is to ask once per Tab; typer's has it ask first whether there are any.
    """
    from typer import _completion_shared

    scripts = _completion_shared._completion_scripts  # noqa: SLF001 typer has no public word for it
    scripts["bash"] = f"COMP_WORDBREAKS=${{COMP_WORDBREAKS//:}}\n{scripts['bash'].strip()}"
    scripts["zsh"] = scripts["zsh"].replace(_ZSH_END, f"{_ZSH_END}\n{_ZSH_FIRST}")
    scripts["fish"] = _FISH


def _docstring(module: str, attribute: str) -> str:
    """Read the docstring of a function, or of its module where it has none, without running either."""
    spec = find_spec(module) if is_there(module) else None
    if spec is None or spec.origin is None:
        return f"Is in a package that is not installed: {module.partition('.')[0].replace('_', '-')}."
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == attribute)
    return ast.get_docstring(next(functions, tree)) or ""
