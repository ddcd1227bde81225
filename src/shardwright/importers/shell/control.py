"""Ends of commands that end others with them."""

from __future__ import annotations


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
