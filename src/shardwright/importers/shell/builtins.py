"""Commands of the shell itself: what they do to its state. Each returns its status, None where that is not known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from shardwright.importers.shell.conditions import test
from shardwright.importers.shell.expansion import computed, separators_of
from shardwright.importers.shell.filters import printf
from shardwright.importers.shell.splitting import BLANK, Fields, add_split
from shardwright.importers.shell.state import ShellState
from shardwright.importers.shell.unknown import is_known, unknown, unknown_variable
from shardwright.importers.shell.walker import Break, Continue, Exit, Return, Status

Builtin = Callable[[Sequence[str], ShellState, str | None], Status]


def _status(words: Sequence[str]) -> Status:
    return None if not words or not words[0].lstrip("-").isdigit() else int(words[0]) == 0


def _exit(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Exit(_status(words))


def _return(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Return(_status(words) if words else True)


def _loops(words: Sequence[str]) -> int:
    return int(words[0]) if words and words[0].isdigit() else 1


def _break(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Break(_loops(words))


def _continue(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Continue(_loops(words))


def _test(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    words = words[:-1] if words and words[-1] == "]" else words
    return test(words, state)


def _export(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    for word in words:
        name, sign, value = word.partition("=")
        if sign and re.fullmatch(r"\w+", name):
            state.put(name, value)
        if not word.startswith("-"):
            state.exported.add(name)
    return True


def _declare(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    for word in words:
        if word.startswith("-"):
            continue
        if "-g" not in words and state.keep(word):
            state.variables.pop(word, None)
        if "-x" in words:
            state.exported.add(word)
        if {"-A", "-a"} & set(words) and word not in state.variables:
            state.variables[word] = {}
    return True


def _unset(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    for word in words:
        name, bracket, index = word.partition("[")
        held = state.variables.get(name)
        if bracket and isinstance(held, dict):
            held.pop(index.rstrip("]"), None)
        else:
            state.variables.pop(name, None)
        state.own |= {name}
    return True


def _shift(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    count = int(words[0]) if words and words[0].isdigit() else 1
    if count > len(state.arguments):
        return False
    state.arguments = state.arguments[count:]
    return True


def _set(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    if "--" in words:
        state.arguments, state.arguments_given = tuple(words[words.index("--") + 1 :]), True
    return True


def _read(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    """`read a b <<< text`, `read -ra list <<< text`; input that is not known gives values that are not."""
    names, options, rest = [], "", list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            options += word[1:]
            if word[-1] in "pdtnu" and rest:
                rest.pop(0)
        else:
            names.append(word)
    names = names or ["REPLY"]
    if given is None or not is_known(given):
        for name in names:
            state.put(name, unknown_variable(name))
        return None
    line = given.split("\n")[0].strip(BLANK)
    separators = separators_of(state)
    if "a" in options:
        found = Fields()
        add_split(line, found, separators)
        found.end()
        state.variables[names[0]] = {str(index): piece for index, piece in enumerate(found.done)}
        return True
    pieces = re.split(f"[{re.escape(separators)}]+", line, maxsplit=len(names) - 1) if len(names) > 1 else [line]
    for name, piece in zip_longest(names, pieces, fillvalue=""):
        state.put(name, piece)
    return bool(line)


def _mapfile(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    name = words[-1] if words and not words[-1].startswith("-") else "MAPFILE"
    lines = [unknown_variable(name)] if given is None or not is_known(given) else given.splitlines()
    state.variables[name] = {str(index): line for index, line in enumerate(lines)}
    return True


def _printf(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    if len(words) > 2 and words[0] == "-v":
        text = printf(words[2:])
        state.put(words[1], unknown_variable(words[1]) if text is None else text)
        return True
    text = printf(words)
    if state.output is not None:
        state.output.append(unknown("$(printf)") if text is None else text)
    return True


def _let(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    numbers = [computed(word, state) for word in words]
    return None if None in numbers else bool(numbers[-1:] and numbers[-1])


def _getopts(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    """One option of the script's arguments, single letters each."""
    if len(words) < 2:
        return False
    allowed, name = words[0].lstrip(":"), words[1]
    index = int(state.get("OPTIND") or 1)
    given_words = list(words[2:]) or list(state.arguments)
    if index > len(given_words) or not re.fullmatch(r"-[A-Za-z]", given_words[index - 1]):
        return False
    letter = given_words[index - 1][1]
    state.put(name, letter if letter in allowed else "?")
    takes = f"{letter}:" in allowed
    if takes:
        state.put("OPTARG", given_words[index] if index < len(given_words) else "")
    state.put("OPTIND", str(index + 1 + takes))
    return True


def _ok(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    return True


def _false(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    return False


IGNORED = (
    ":", "true", "readonly", "cd", "pushd", "popd", "shopt", "trap", "wait", "umask", "ulimit", "alias", "hash",
    "sleep", "mkdir", "touch", "module", "clear", "rm", "cp", "mv", "ln", "chmod", "jobs",
)  # fmt: skip
BUILTINS: Mapping[str, Builtin] = {
    "exit": _exit, "return": _return, "break": _break, "continue": _continue, "[": _test, "test": _test,
    "export": _export, "declare": _declare, "typeset": _declare, "local": _declare, "unset": _unset,
    "shift": _shift, "set": _set, "read": _read, "mapfile": _mapfile, "readarray": _mapfile, "printf": _printf,
    "let": _let, "getopts": _getopts, "false": _false, **dict.fromkeys(IGNORED, _ok),
}  # fmt: skip
