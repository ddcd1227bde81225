"""Commands of the shell as trees."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.importers.shell.words import Word


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value`, `name+=value`, `name[index]=value`, `name=(values)`."""

    name: str
    value: Word | tuple[tuple[Word | None, Word], ...]  # an array: (index or None, value)
    index: Word | None = None
    append: bool = False


@dataclass(frozen=True, slots=True)
class Redirect:
    """`> file` and the like. `body` is the text of a here-document or a here-string."""

    operator: str
    target: Word
    body: Word | None = None


@dataclass(frozen=True, slots=True)
class Simple:
    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]
    redirects: tuple[Redirect, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[Command, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Pipelines joined by `&&` and `||`; the first has the empty operator."""

    links: tuple[tuple[str, Command], ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with what is done; the else branch has an empty condition."""

    branches: tuple[tuple[Sequence, Sequence], ...]
    otherwise: Sequence


@dataclass(frozen=True, slots=True)
class While:
    condition: Sequence
    body: Sequence
    until: bool


@dataclass(frozen=True, slots=True)
class For:
    name: str
    words: tuple[Word, ...] | None  # None: the positional arguments
    body: Sequence


@dataclass(frozen=True, slots=True)
class CountedFor:
    """`for ((begin; condition; step))`."""

    begin: Word
    condition: Word
    step: Word
    body: Sequence


@dataclass(frozen=True, slots=True)
class Case:
    subject: Word
    branches: tuple[tuple[tuple[Word, ...], Sequence, str], ...]  # patterns, what is done, how it ends


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    body: Command


@dataclass(frozen=True, slots=True)
class Group:
    """`{ …; }`, or with `subshell` `( … )`."""

    body: Sequence
    redirects: tuple[Redirect, ...]
    subshell: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """`[[ … ]]`: operands and operators in order; operators are strings."""

    words: tuple[Word | str, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """`(( … ))`."""

    expression: Word


Command = (
    Simple | Pipeline | Chain | Sequence | If | While | For | CountedFor | Case | Function | Group | Condition | Compute
)
