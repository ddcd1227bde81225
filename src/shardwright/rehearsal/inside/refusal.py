"""What the process of a rehearsal refuses, in the words that the command prints."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818
    """Something is missing or cannot be rehearsed: its name, what is wrong with it, and the remedy."""

    def __init__(self, path: str, message: str, hint: str) -> None:
        super().__init__(f"{path}: {message} ({hint})")
        self.path, self.message, self.hint = path, message, hint
