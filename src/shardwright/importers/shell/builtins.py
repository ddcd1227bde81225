"""Commands of the shell itself: what they do to its state. Each returns its status, None where that is not known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from shardwright.importers.shell.conditions import test
from shardwright.importers.shell.control import Break, Continue, Exit, Return
from shardwright.importers.shell.expansion import number_of
from shardwright.importers.shell.filters import printf
from shardwright.importers.shell.state import ShellState
from shardwright.importers.shell.unknown import is_known, unknown, unknown_variable
from shardwright.importers.shell.words import ShellWord, Text

Status = bool | None
Builtin = Callable[[Sequence[str], ShellState, str | None], Status]


def _status(words: Sequence[str]) -> Status:
    return None if not words or not words[0].lstrip("-").isdigit() else int(words[0]) == 0


def _exit(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Exit(_status(words))


def _return(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Return(_status(words) if words else True)


def _break(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Break


def _continue(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    raise Continue


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
        if "-x" in words:
            state.exported.add(word)
        if {"-A", "-a"} & set(words) and word not in state.variables:
            state.variables[word] = {}
    return True


def _unset(words: Sequence[str], state: ShellState, given: str | None) -> Status:
    for word in words:
        state.variables.pop(word, None)
        state.own |= {word}
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
    line = given.split("\n")[0]
    separators = state.get("IFS")
    separators = separators if separators and is_known(separators) else " \t\n"
    pieces = [piece for piece in re.split(f"[{re.escape(separators)}]+", line.strip(" \t\n")) if piece]
    if "a" in options:
        state.variables[names[0]] = {str(index): piece for index, piece in enumerate(pieces)}
        return True
    for index, name in enumerate(names):
        last = index == len(names) - 1
        state.put(name, " ".join(pieces[index:]) if last else pieces[index] if index < len(pieces) else "")
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
    number = 0
    for word in words:
        found = number_of(ShellWord((Text(word, quoted=True),)), state)
        if found is None:
            return None
        number = found
    return number != 0


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


BUILTINS: Mapping[str, Builtin] = {
    "exit": _exit, "return": _return, "break": _break, "continue": _continue, "[": _test, "test": _test,
    "export": _export, "declare": _declare, "typeset": _declare, "local": _declare, "readonly": _declare,
    "unset": _unset, "shift": _shift, "set": _set, "read": _read, "mapfile": _mapfile, "readarray": _mapfile,
    "printf": _printf, "let": _let, "getopts": _getopts, ":": _ok, "true": _ok, "false": _false, "cd": _ok,
    "pushd": _ok, "popd": _ok, "shopt": _ok, "trap": _ok, "wait": _ok, "umask": _ok, "ulimit": _ok, "alias": _ok,
    "hash": _ok, "sleep": _ok, "mkdir": _ok, "touch": _ok, "module": _ok, "clear": _ok, "rm": _ok, "cp": _ok,
    "mv": _ok, "ln": _ok, "chmod": _ok, "jobs": _ok,
}  # fmt: skip
