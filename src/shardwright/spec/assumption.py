"""`Assumption`: what a description left open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assumption:
    """What a description left open, `about` in a word or two, and in `words` what was taken instead and why."""

    about: str
    words: str

    @classmethod
    def of(cls, text: str) -> Assumption:
        """Return the assumption that `str` writes so."""
        about, _, words = text.partition(": ")
        return cls(about, words)

    def __str__(self) -> str:
        return f"{self.about}: {self.words}"
