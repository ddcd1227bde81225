"""Checked access to the fields of a mapping that a user wrote, collecting every problem instead of the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from shardwright.errors import Problem, suggestion
from shardwright.records import record

SMALLEST, LARGEST = 1e-12, 1e15


@record(kw_only=False)
class Section:
    """One mapping of a document: its place (`cluster.yaml: nodes[1]`), its fields, and the shared list of problems.

    A method that reads a field returns None where the field is missing or wrong; the latter adds to `problems`.
    """

    place: str
    fields: Mapping[str, object]
    problems: list[Problem]

    def place_of(self, key: str) -> str:
        return f"{self.place}{'.' if ': ' in self.place else ': '}{key}"

    def report(self, key: str, message: str, hint: str = "") -> None:
        """Add a problem with the field `key`."""
        self.problems.append(Problem(self.place_of(key), message, hint))

    def reject_unknown(self, known: Iterable[str]) -> None:
        """Add a problem for each key that is not in `known`."""
        allowed = tuple(known)
        for key in self.fields:
            if key not in allowed:
                self.report(str(key), "unknown key", suggestion(str(key), allowed))

    def require(self, key: str, hint: str) -> None:
        """Add a problem if `key` is missing or null."""
        if self.fields.get(key) is None:
            self.report(key, "is missing", hint)

    def given(self, key: str, right: Callable[[Any], object], expected: str, hint: str) -> Any:
        """Return the value of `key` where it is `right`, else None, after adding a problem unless it is missing."""
        value = self.fields.get(key)
        if value is None or right(value):
            return value
        self.report(key, f"expected {expected}, got {shown(value)}", hint)
        return None

    def text(self, key: str) -> str | None:
        """Return a text that is not blank."""
        hint = "write a name, in quotes if it looks like a number"
        value = self.given(key, lambda value: isinstance(value, str) and value.strip(), "a text", hint)
        return None if value is None else str(value).strip()

    def word(self, key: str, allowed: tuple[str, ...]) -> str:
        """Return one of `allowed`, the first where missing or wrong."""
        word = self.text(key) or allowed[0]
        if word not in allowed:
            self.report(key, f"{shown(word)} is not known", suggestion(word, allowed))
            return allowed[0]
        return word

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false, `default` where missing, false where wrong."""
        if self.fields.get(key) is None:
            return default
        return bool(self.given(key, lambda value: isinstance(value, bool), "true or false", "write true or false"))

    def number(self, key: str, *, zero: bool = False, most: float = LARGEST) -> float | None:
        """Return a finite number above zero (or from zero on, where `zero`) and up to `most`."""
        value = self.fields.get(key)
        if value is None:
            return None
        problem = number_problem(value, zero=zero, most=most)
        if problem:
            self.report(key, *problem)
            return None
        return float(cast("float", value))

    def integer(self, key: str, *, most: int) -> int | None:
        """Return a whole number from 1 to `most`."""
        if self.number(key, most=most) is None:
            return None
        value = self.given(key, lambda value: value == int(value), "a whole number", "round it")
        return None if value is None else int(value)

    def count(self, key: str, *, most: int) -> int:
        """Return a whole number that may be zero or missing (then zero)."""
        value = self.fields.get(key)
        return 0 if value == 0 and not isinstance(value, bool) else self.integer(key, most=most) or 0

    def inner(self, key: str) -> Section | None:
        """Return the mapping `key` as a section of its own."""
        hint = "write it as {key: value, …}"
        value = self.given(key, lambda value: isinstance(value, Mapping), "a mapping", hint)
        return None if value is None else Section(self.place_of(key), value, self.problems)

    def sections(self, key: str) -> Iterator[Section]:
        """Yield the mappings of the list `key`; entries that are no mappings are problems."""
        listed = self.given(key, lambda value: isinstance(value, list), "a list", "start each entry with '- '")
        for index, item in enumerate(listed or ()):
            place = f"{key}[{index}]"
            if isinstance(item, Mapping):
                yield Section(self.place_of(place), item, self.problems)
            else:
                self.report(place, f"expected a mapping, got {shown(item)}", "write it as {key: value, …}")


def number_problem(value: object, *, zero: bool = False, most: float = LARGEST) -> tuple[str, str] | None:
    """Return message and hint if `value` is not a finite number in range, else None."""
    if isinstance(value, str):
        return f"expected a number, got the text {shown(value)}", "write the number without quotes and units"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"expected a number, got {shown(value)}", "write a number"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number", "write a finite number"
    if value < 0 or (value == 0 and not zero):
        wanted = "zero or more" if zero else "more than zero"
        return f"must be {wanted}, got {shown(value)}", "correct the number"
    if 0 < value < SMALLEST:
        return f"{shown(value)} is too small to be meant", "check the unit"
    if value > most:
        return f"{shown(value)} is too large (at most {most:g})", "check the unit"
    return None


def shown(value: object) -> str:
    """Return a short form of a value for a message."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "…"
