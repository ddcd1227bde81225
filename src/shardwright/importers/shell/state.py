"""What a shell knows while a script is read: variables, functions, arguments, files that the script writes; and what
walks the commands of a script, as the rules for each kind of command see it, with the ends that end others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Protocol, TypeVar, cast

from shardwright.importers.shell.syntax import Command
from shardwright.importers.shell.unknown import unknown, unknown_variable
from shardwright.records import record

T = TypeVar("T")
Value = str | dict[str, str]  # an array has its subscripts as text
MOST_CHARACTERS = 4_000_000
TAKEN = (
    "variables",
    "locals",
    "exported",
    "functions",
    "arguments",
    "files",
    "assumed",
    "reasons",
    "started",
    "output",
)
ALWAYS_SET = frozenset(("PWD", "HOME", "USER", "HOSTNAME", "UID", "RANDOM", "PATH", "SECONDS", "OLDPWD", "SHELL"))
MOST_ROUNDS, DEEPEST = 2_000, 40
Status = bool | None


class TooMuchError(ValueError):
    """The script grows beyond all reason."""


@record
class Started:
    """A command that the script starts: its words, with what is unknown marked, the variables that it is given, and
    the program (`srun`, `mpirun`) that starts it on other machines, as words."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    around: tuple[str, ...]
    line: int


@dataclass(slots=True, kw_only=True)
class ShellState:
    """`own` are the names that the script gives a value somewhere: such a variable is empty until then. Any other
    comes from outside: it is unknown where its value is used, and unset where the script asks whether it is set, which
    `assumed` notes. `reasons` says of a variable why it is not known. `locals` are, inside of a function, the values
    that its local names have outside."""

    name: str
    own: frozenset[str]
    substitute: Callable[[str, ShellState], str]
    variables: dict[str, Value] = field(default_factory=dict)
    locals: dict[str, Value | None] | None = None
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Command] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    arguments_given: bool = False
    files: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    started: list[Started] = field(default_factory=list)
    output: list[str] | None = None
    asking: bool = False

    def copy(self) -> ShellState:
        """Return a state of its own, as a subshell has."""
        return replace(
            self,
            variables={name: _own(value) for name, value in self.variables.items()},
            locals=None if self.locals is None else dict(self.locals),
            exported=set(self.exported),
            functions=dict(self.functions),
            files=dict(self.files),
            assumed=dict(self.assumed),
            reasons=dict(self.reasons),
            started=list(self.started),
            output=None if self.output is None else list(self.output),
        )

    def take(self, other: ShellState) -> None:
        """Become what `other` is."""
        for name in TAKEN:
            setattr(self, name, getattr(other, name))

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Inside, the script asks: variables that nobody sets are unset in it."""
        before, self.asking = self.asking, True
        try:
            yield
        finally:
            self.asking = before

    def keep(self, name: str) -> bool:
        """Return whether a name becomes local to the function that runs, for which its value outside is kept."""
        if self.locals is None or name in self.locals:
            return False
        self.locals[name] = _own(self.variables.get(name))
        return True

    def restore(self, kept: Mapping[str, Value | None]) -> None:
        """Give variables the values that they had before, None for none."""
        for name, value in kept.items():
            self.variables.pop(name, None)
            self.variables |= {} if value is None else {name: value}

    def put(self, name: str, value: Value) -> None:
        """Assign a variable; to an array its first element."""
        size = len(value) if isinstance(value, str) else sum(map(len, value.values()))
        if size > MOST_CHARACTERS:
            raise TooMuchError
        held = self.variables.get(name)
        if isinstance(held, dict) and isinstance(value, str):
            held["0"] = value
        else:
            self.variables[name] = value

    def get(self, name: str) -> str | None:
        """Return the value of a variable, of an array its first element; None where it is not set."""
        value = self.variables.get(name)
        if isinstance(value, dict):
            return value.get("0", next(iter(value.values()), ""))
        return value

    def read(self, name: str) -> str:
        """Return the value that a reference to a variable has."""
        value = self.get(name)
        if value is not None:
            return value
        if name in self.own or name in self.assumed:
            return ""
        if self.asking and name not in ALWAYS_SET:
            self.assumed[name] = ""
            return ""
        return unknown_variable(name)

    def items(self, name: str) -> list[str]:
        """Return the elements of an array, or the value of a variable as one."""
        value = self.variables.get(name)
        if isinstance(value, dict):
            return list(value.values())
        return [self.read(name)] if value is not None or name not in self.own | set(self.assumed) else []

    def environment(self) -> dict[str, str]:
        """Return the variables that a program is given."""
        return {name: value for name in sorted(self.exported) if (value := self.get(name)) is not None}


def _own(value: T) -> T:
    """A copy of what can change."""
    return cast("T", dict(value)) if isinstance(value, dict) else value


def merged(left: ShellState, right: ShellState, why: str) -> ShellState:
    """Return what is known after either of two branches: what they disagree on is not. `why` says what decides."""
    both = left.copy()
    for name in sorted(set(left.variables) | set(right.variables)):
        mine, theirs = left.variables.get(name), right.variables.get(name)
        if mine == theirs:
            continue
        both.reasons[name] = why
        if isinstance(mine, dict) and isinstance(theirs, dict):
            both.variables[name] = _common(mine, theirs, name)
        elif isinstance(mine, str) and isinstance(theirs, str):
            both.variables[name] = _common_words(mine, theirs, name)
        else:
            both.variables[name] = unknown_variable(name)
    both.exported |= right.exported
    both.locals = None if left.locals is None else {**(right.locals or {}), **left.locals}
    both.functions = {**right.functions, **left.functions}
    both.files = {path: text for path, text in left.files.items() if right.files.get(path) == text}
    both.assumed |= right.assumed
    both.reasons |= {name: text for name, text in right.reasons.items() if name not in both.reasons}
    both.started += [item for item in right.started if item not in both.started]
    if left.output is not None and left.output != right.output:
        both.output = [unknown(f"what depends on {why}")]
    return both


def _common_words(mine: str, theirs: str, name: str) -> str:
    """The words that two texts begin with, and one unknown that stands for the others."""
    pairs = zip(mine.split(" "), theirs.split(" "), strict=False)
    words = [word for word, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return " ".join([*words, unknown_variable(name)])


def _common(mine: dict[str, str], theirs: dict[str, str], name: str) -> dict[str, str]:
    """The elements that two arrays begin with, and one that stands for the others."""
    pairs = zip(mine.items(), theirs.items(), strict=False)
    first = dict(item for item, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return {**first, str(len(first)): unknown_variable(name)}


def special_value(name: str, state: ShellState) -> str | None:
    """Return what `$1`, `$#`, `$@` and the like are, None for a name that is none of these."""
    if name.isdigit():
        number = int(name)
        if number == 0:
            return state.name
        if number <= len(state.arguments):
            return state.arguments[number - 1]
        return "" if state.asking or state.arguments_given else unknown(f"${name}")
    fixed = {"#": str(len(state.arguments)), "?": "0", "-": "hB", "@": " ".join(state.arguments)}
    if name in fixed:
        return fixed[name]
    if name in ("$", "!"):
        return unknown(f"${name}")
    return state.name if name == "BASH_SOURCE" and name not in state.variables else None


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
