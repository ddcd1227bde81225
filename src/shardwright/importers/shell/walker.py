"""What walks the commands of a script, as the rules for each kind of command see it, and the ends that end others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shardwright.importers.shell.state import ShellState
from shardwright.importers.shell.syntax import Command

MOST_ROUNDS, DEEPEST = 2_000, 40
Status = bool | None


class Walker(Protocol):
    """Walks commands. `files` finds the text of a script that this one names, or None; `depth` is how deep it is."""

    files: Callable[[str], str | None]
    depth: int

    def run(self, command: Command, state: ShellState, given: str | None = None) -> Status:
        """Walk a command that has `given` on its input; return its status, None where that is not known."""

    def run_text(self, text: str, state: ShellState, position: int) -> Status:
        """Walk text as a script of its own. Raises ShellSyntaxError for what is none."""

    def line_of(self, position: int) -> int:
        """Return the line of the script that a command at a position of the text being walked comes from."""


class Ended(Exception):  # noqa: N818 (it is none)
    """What runs ends, with a status that may not be known."""

    def __init__(self, status: bool | None = True) -> None:
        super().__init__()
        self.status = status


class Exit(Ended):
    """The script, or a subshell of it, ends."""


class Return(Ended):
    """A function or a sourced file ends."""


class Break(Ended):
    """So many loops end, the innermost first."""

    def __init__(self, loops: int) -> None:
        super().__init__()
        self.loops = loops


class Continue(Break):
    """All but the outermost of so many loops end, and a round of that one."""
