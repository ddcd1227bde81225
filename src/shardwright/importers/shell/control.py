"""Ends of commands that end others with them."""

from __future__ import annotations


class Exit(Exception):  # noqa: N818 (it is none)
    """The script, or a subshell of it, ends."""

    def __init__(self, status: bool | None) -> None:
        super().__init__()
        self.status = status


class Return(Exception):  # noqa: N818 (it is none)
    """A function or a sourced file ends."""

    def __init__(self, status: bool | None) -> None:
        super().__init__()
        self.status = status


class Break(Exception):  # noqa: N818 (it is none)
    """A loop ends."""


class Continue(Exception):  # noqa: N818 (it is none)
    """A round of a loop ends."""
