"""Redirections: what a command has on its input, and what is written into files."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.importers.shell.expansion import text_of
from shardwright.importers.shell.state import ShellState
from shardwright.importers.shell.syntax import Redirect
from shardwright.importers.shell.unknown import shown, unknown

WRITING = (">", ">>", ">|")


def input_of(redirects: Sequence[Redirect], state: ShellState, given: str | None) -> str | None:
    """Return what a command with these redirections has on its input."""
    for redirect in redirects:
        if redirect.body is not None:
            given = text_of(redirect.body, state) + "\n" * (redirect.operator == "<<<")
        elif redirect.operator == "<":
            path = text_of(redirect.target, state)
            given = state.files.get(path, unknown(f"the text of {shown(path)}"))
    return given


def write(redirects: Sequence[Redirect], text: str, state: ShellState) -> None:
    """Remember what the script writes into a file."""
    for redirect in redirects:
        if redirect.operator in WRITING:
            path = text_of(redirect.target, state)
            state.files[path] = (state.files.get(path, "") if redirect.operator == ">>" else "") + text
