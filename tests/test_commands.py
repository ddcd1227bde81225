"""A command line from annotated functions: what is parsed, what is refused, and what is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from click.exceptions import BadParameter, MissingParameter, NoSuchCommand

from shardwright.commands import CommandGroup, argument, command, option


def show(
    plan: Annotated[Path, argument("PLAN.json", help="A plan.")],
    names: Annotated[tuple[str, ...], option("--set", help="Some.")] = (),
    count: Annotated[int, option(metavar="N", help="How many.")] = 3,
    share: Annotated[float | None, option(help="A part.")] = None,
    fast: Annotated[bool, option("--fast/--slow", help="How.")] = True,
    dry_run: Annotated[bool, option("--dry-run", help="Only show it.")] = False,
) -> dict[str, Any]:
    return dict(plan=plan, names=names, count=count, share=share, fast=fast, dry_run=dry_run)


show.__doc__ = "Show a plan."
HOMES = {
    "show": (f"{__name__}:show", "Show it."),
    "away": ("no_such_module:function", "Imported when it is asked for."),
}


def called(*words: str) -> Any:
    return CommandGroup("words", HOMES)(args=["show", *words], standalone_mode=False)


def test_words_become_the_values_that_annotations_name() -> None:
    assert called("a.json") == dict(plan=Path("a.json"), names=(), count=3, share=None, fast=True, dry_run=False)
    words = ["a.json", "--set", "a", "--set", "b", "--count", "7", "--share", "0.5", "--slow", "--dry-run"]
    assert called(*words) == dict(plan=Path("a.json"), names=("a", "b"), count=7, share=0.5, fast=False, dry_run=True)


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ([], MissingParameter, "plan"),
        (["a.json", "--count", "many"], BadParameter, "'many' is not a valid integer"),
    ],
)
def test_what_does_not_fit_is_named(words: list[str], error: type[click.UsageError], said: str) -> None:
    with pytest.raises(error, match=said):
        called(*words)


def test_a_group_lists_commands_without_importing_them_and_says_what_may_have_been_meant() -> None:
    group = CommandGroup("words", HOMES, help="Two of them.")
    listed = group.get_help(click.Context(group))
    assert "Imported when it is asked for." in listed and "no_such_module" not in sys.modules
    with pytest.raises(NoSuchCommand) as error:
        group(args=["shwo"], standalone_mode=False)
    assert error.value.possibilities == ["show"]


def test_help_shows_defaults_that_say_something() -> None:
    text = command(show, "show", "").get_help(click.Context(command(show, "show", "")))
    assert "[default: 3]" in text and "[default: fast]" in text and text.count("[default") == 2
    assert "Show a plan." in text and "PLAN.json  A plan." in text
