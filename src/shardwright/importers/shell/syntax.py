"""Commands of the shell as trees, and as a person would write them."""

from __future__ import annotations

from shardwright.importers.shell.words import Reference, ShellWord
from shardwright.records import record


@record(kw_only=False)
class Assignment:
    """`name=value`, `name+=value`, `name[index]=value`, `name=(values)`."""

    name: str
    value: ShellWord | tuple[tuple[ShellWord | None, ShellWord], ...]  # an array: (index or None, value)
    index: ShellWord | None = None
    append: bool = False


@record(kw_only=False)
class Redirect:
    """`> file` and the like. `body` is the text of a here-document or a here-string."""

    operator: str
    target: ShellWord
    body: ShellWord | None = None


@record(kw_only=False)
class Simple:
    assignments: tuple[Assignment, ...]
    words: tuple[ShellWord | Assignment, ...]
    redirects: tuple[Redirect, ...]
    position: int


@record(kw_only=False)
class Pipeline:
    commands: tuple[Command, ...]
    negated: bool = False


@record(kw_only=False)
class Chain:
    """Pipelines joined by `&&` and `||`; the first has the empty operator."""

    links: tuple[tuple[str, Command], ...]


@record(kw_only=False)
class Sequence:
    commands: tuple[Command, ...]


@record(kw_only=False)
class If:
    """Conditions with what is done; the else branch has an empty condition."""

    branches: tuple[tuple[Sequence, Sequence], ...]
    otherwise: Sequence


@record(kw_only=False)
class While:
    condition: Sequence
    body: Sequence
    until: bool


@record(kw_only=False)
class For:
    name: str
    words: tuple[ShellWord, ...] | None  # None: the positional arguments
    body: Sequence


@record(kw_only=False)
class CountedFor:
    """`for ((begin; condition; step))`."""

    begin: ShellWord
    condition: ShellWord
    step: ShellWord
    body: Sequence


@record(kw_only=False)
class ShellCase:
    subject: ShellWord
    branches: tuple[tuple[tuple[ShellWord, ...], Sequence, str], ...]  # patterns, what is done, how it ends


@record(kw_only=False)
class Function:
    name: str
    body: Command


@record(kw_only=False)
class ShellGroup:
    """`{ …; }`, or with `subshell` `( … )`."""

    body: Sequence
    redirects: tuple[Redirect, ...]
    subshell: bool


@record(kw_only=False)
class Condition:
    """`[[ … ]]`: operands and operators in order; operators are strings."""

    words: tuple[ShellWord | str, ...]


@record(kw_only=False)
class Compute:
    """`(( … ))`."""

    expression: ShellWord


Compound = If | While | For | CountedFor | ShellCase | ShellGroup | Condition | Compute
Command = Simple | Pipeline | Chain | Sequence | Function | Compound


def words_of(command: Command) -> str:
    """Return a condition as a person would write it."""
    match command:
        case Simple(words=words):
            return " ".join(_source(word) for word in words if isinstance(word, ShellWord))
        case Sequence(commands=commands):
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
