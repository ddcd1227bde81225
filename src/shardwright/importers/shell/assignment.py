"""Assignments of a script."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardwright.importers.shell.expansion import fields, number_of, text_of
from shardwright.importers.shell.state import ShellState, TooMuchError
from shardwright.importers.shell.syntax import Assignment
from shardwright.importers.shell.words import ShellWord

MOST_ELEMENTS = 20_000
ASSIGNED = re.compile(
    r"(?:^|[\s;&|({])(?:export\s+|local\s+|declare\s+(?:-\w+\s+)*|readonly\s+)?([A-Za-z_]\w*)(?:\[[^\]\n]*\])?\+?="
)


def assign(assignment: Assignment, state: ShellState, declaring: Sequence[str] = ()) -> None:
    """Make an assignment; `declaring` are the words of the declaration that it stands in."""
    if isinstance(assignment.value, tuple):
        _assign_array(assignment, assignment.value, state)
    elif assignment.index is not None:
        _assign_element(assignment, assignment.index, text_of(assignment.value, state), state)
    else:
        _assign_text(assignment, assignment.value, state, integer="-i" in declaring)


def _items(name: str, state: ShellState) -> dict[str, str]:
    held = state.variables.get(name)
    return dict(held) if isinstance(held, dict) else {} if held is None else {"0": held}


def _assign_array(
    assignment: Assignment, values: tuple[tuple[ShellWord | None, ShellWord], ...], state: ShellState
) -> None:
    items = _items(assignment.name, state) if assignment.append else {}
    following = max((int(key) for key in items if key.isdigit()), default=-1) + 1
    for index, value in values:
        if index is not None:
            key = text_of(index, state)
            items[key] = text_of(value, state)
            following = int(key) + 1 if key.isdigit() else following
            continue
        for text in fields(value, state):
            items[str(following)] = text
            following += 1
        if len(items) > MOST_ELEMENTS:
            raise TooMuchError
    state.variables.pop(assignment.name, None)
    state.put(assignment.name, items)


def _assign_element(assignment: Assignment, index: ShellWord, value: str, state: ShellState) -> None:
    items = _items(assignment.name, state)
    named = any(not key.isdigit() for key in items)
    number = None if named else number_of(index, state)
    key = text_of(index, state) if number is None else str(number)
    items[key] = items.get(key, "") + value if assignment.append else value
    state.variables.pop(assignment.name, None)
    state.put(assignment.name, items)


def _assign_text(assignment: Assignment, word: ShellWord, state: ShellState, *, integer: bool) -> None:
    value = text_of(word, state)
    if assignment.append and assignment.name in state.variables:
        value = state.read(assignment.name) + value
    if integer and (number := number_of(word, state)) is not None:
        value = str(number)
    state.put(assignment.name, value)


def names_assigned(text: str) -> frozenset[str]:
    """Return the names that a script gives a value, wherever in it."""
    found = set(ASSIGNED.findall(text)) | set(re.findall(r"\bfor\s+([A-Za-z_]\w*)\s+in\b", text))
    for names in re.findall(r"\bread\s+((?:-\w+\s+)*[A-Za-z_][\w ]*)", text):
        found |= {name for name in names.split() if not name.startswith("-")}
    return frozenset(found)
