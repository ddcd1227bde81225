"""A command line from functions: what the annotations of their parameters say is what click parses.

    def check(plan: Annotated[Path, argument("PLAN.json", help="A plan file.")], json: AsJson = False) -> None: …

A parameter whose type is a dataclass stands for an option a field, which help shows under the first line of its
docstring. The function gets the dataclass.

A `CommandGroup` imports the module of a command when the command is asked for.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource
from click.exceptions import NoSuchCommand

from shardwright.records import record

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}
Complete = Callable[[str], list[str]]  # the words that begin like that


@record(kw_only=False)
class CommandParameter:
    """What an annotation says of a parameter of a command, beside its type."""

    kind: type[click.Parameter]
    names: tuple[str, ...]
    words: Mapping[str, Any] = field(default_factory=dict)


def option(*names: str, help: str, metavar: str | None = None, complete: Complete | None = None) -> CommandParameter:
    """Return what makes a parameter an option, of its own name if no `names` are given."""
    return CommandParameter(
        click.Option, names, {"help": help, "metavar": metavar, "shell_complete": _completing(complete)}
    )


def argument(metavar: str | None = None, *, help: str, complete: Complete | None = None) -> CommandParameter:
    """Return what makes a parameter a positional one."""
    return CommandParameter(
        click.Argument, (), {"help": help, "metavar": metavar, "shell_complete": _completing(complete)}
    )


def command(function: Callable[..., Any], name: str, short_help: str) -> click.Command:
    """Return the command that calls a function with what was parsed; its help is the function's docstring."""
    return GroupedCommand(name, short_help=short_help, context_settings=CONTEXT, **_calling(function))


def given() -> frozenset[str]:
    """Return the names of the parameters that the command that runs was told, whatever their values."""
    context = click.get_current_context()
    return frozenset(
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )


class HeadedOption(click.Option):
    """An option, and the heading that it stands under in help. An empty text is no value of it: a shell's variable that
    is not set is not taken for what is usual."""

    heading = "Options"

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value as its type. Raises BadParameter where it is empty."""
        if self.default != "" and "" in (value if isinstance(value, list | tuple) else (value,)):
            raise click.BadParameter("is empty: write a value, or leave the option out", ctx, self)
        return super().type_cast_value(ctx, value)


class GroupedCommand(click.Command):
    """A command whose help has its options under headings, where they have some."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: those without a heading first."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            if not isinstance(parameter, click.Argument) and (record := parameter.get_help_record(ctx)):
                sections.setdefault(getattr(parameter, "heading", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class CommandGroup(click.Group):
    """Commands by name: where they are, `module:function` or `module:group`, and what they do in a line. With `options`
    of its own, that function is called before a command, and where none is given."""

    def __init__(
        self,
        name: str,
        homes: Mapping[str, tuple[str, str]],
        *,
        help: str | None = None,
        options: Callable[..., Any] | None = None,
    ) -> None:
        passed: dict[str, Any] = {"help": help} if options is None else _calling(options)
        super().__init__(name, context_settings=CONTEXT, invoke_without_command=options is not None, **passed)
        self.homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which they are given."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, if there is one."""
        if cmd_name not in self.homes:
            return None
        home, short_help = self.homes[cmd_name]
        module, _, attribute = home.partition(":")
        loaded = getattr(importlib.import_module(module), attribute)
        return loaded if isinstance(loaded, click.Command) else command(loaded, cmd_name, short_help)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the words name. Raises NoSuchCommand, with what may have been meant."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise NoSuchCommand(error.command_name, possibilities=self.homes, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help) in self.homes.items()])


def _calling(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what makes a command call a function."""
    hints, parameters = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    params: list[click.Parameter] = []
    for name, parameter in parameters.items():
        params += _options_of(groups[name]) if name in groups else [_parameter(name, hints[name], parameter.default)]

    @wraps(function)
    def call(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
        return function(**values)

    return {"callback": call, "params": params, "help": inspect.cleandoc(function.__doc__ or "")}


def _options_of(group: Any) -> list[click.Parameter]:
    """Return the options that are the fields of a dataclass."""
    hints, heading = get_type_hints(group, include_extras=True), inspect.cleandoc(group.__doc__).partition("\n")[0]
    options = [_parameter(item.name, hints[item.name], item.default) for item in fields(group)]
    for parameter in options:
        vars(parameter)["heading"] = heading.rstrip(".")
    return options


def _parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    """Return what click parses for a parameter of a function."""
    annotated, said = get_args(hint) if get_origin(hint) is Annotated else (hint, CommandParameter(click.Argument, ()))
    kind = next(
        (annotation for annotation in get_args(annotated) if annotation is not NoneType and annotation is not ...),
        annotated,
    )
    several = get_origin(annotated) is tuple
    words = {key: value for key, value in said.words.items() if value is not None}
    words["type"] = click.Path(path_type=Path) if kind is Path else kind
    words |= {"required": True} if default is inspect.Parameter.empty else {"default": default}
    if said.kind is click.Argument:
        return click.Argument([name], nargs=-1 if several else 1, **words)
    flag = "--" + name.replace("_", "-")
    names = said.names or ((f"{flag}/--no-{flag[2:]}",) if kind is bool else (flag,))
    return HeadedOption(
        [name, *names], is_flag=kind is bool or None, multiple=several, show_default=default != "", **words
    )


def _completing(complete: Complete | None) -> Callable[[click.Context, click.Parameter, str], list[str]] | None:
    return None if complete is None else lambda context, parameter, incomplete: complete(incomplete)
