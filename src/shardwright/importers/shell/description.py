"""Conditions of a script, as a person would write them."""

from __future__ import annotations

from shardwright.importers.shell.syntax import Chain, Command, Condition, Pipeline, Simple
from shardwright.importers.shell.syntax import Sequence as Commands
from shardwright.importers.shell.words import Reference, ShellWord


def words_of(command: Command) -> str:
    """Return a condition as a person would write it."""
    match command:
        case Simple(words=words):
            return " ".join(_source(word) for word in words if isinstance(word, ShellWord))
        case Commands(commands=commands):
            return "; ".join(words_of(item) for item in commands)
        case Condition(words=words):
            return "[[ " + " ".join(word if isinstance(word, str) else _source(word) for word in words) + " ]]"
        case Pipeline(commands=commands):
            return " | ".join(words_of(item) for item in commands)
        case Chain(links=links):
            return " ".join(f"{sign} {words_of(item)}".strip() for sign, item in links)
    return "a condition"


def _source(word: ShellWord) -> str:
    """Return a word as it might stand in the script."""
    found = []
    for part in word.parts:
        if isinstance(part, Reference):
            found.append(
                f"${{{part.prefix}{part.name}{part.operator}}}" if part.operator or part.prefix else f"${part.name}"
            )
        else:
            found.append(getattr(part, "value", "$(…)"))
    return "".join(found)
