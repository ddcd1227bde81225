"""Simple commands: assignments, functions of the script, builtins, other scripts, the programs that it starts, what
they have on their input, and what they write into files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardwright.importers.shell import builtins, wrappers
from shardwright.importers.shell.expansion import fields, number_of, text_of
from shardwright.importers.shell.state import DEEPEST, Exit, Return, ShellState, Started, Status, TooMuchError, Walker
from shardwright.importers.shell.syntax import Assignment, Redirect, Simple
from shardwright.importers.shell.unknown import is_known, shown, unknown
from shardwright.importers.shell.words import ShellWord
from shardwright.importers.shell.wrappers import sbatch, slurm_variables

LOCAL = ("local", "declare", "typeset")  # what makes names of a function its own
MOST_ELEMENTS = 20_000
ASSIGNED = re.compile(
    r"(?:^|[\s;&|({])(?:export\s+|local\s+|declare\s+(?:-\w+\s+)*|readonly\s+)?([A-Za-z_]\w*)(?:\[[^\]\n]*\])?\+?="
)
WRITING = (">", ">>", ">|")


def simple(walker: Walker, command: Simple, state: ShellState, given: str | None) -> Status:
    """Walk a simple command; its own assignments hold while it runs."""
    if command.words and isinstance(first := command.words[0], ShellWord) and first.literal in ("[", "test"):
        with state.asked():
            return _simple(walker, command, state, given)
    return _simple(walker, command, state, given)


def _simple(walker: Walker, command: Simple, state: ShellState, given: str | None) -> Status:
    words = _words(command, state)
    given = input_of(command.redirects, state, given) if command.words else given
    names = {assignment.name for assignment in command.assignments}
    before, shown_before = state.copy().variables if names and words else {}, names & state.exported
    for assignment in command.assignments:
        assign(assignment, state)
    if not words:
        return True
    state.exported |= names
    try:
        return _start(walker, words, command, state, given)
    finally:
        state.restore({name: before.get(name) for name in names})
        state.exported -= names - shown_before


def _words(command: Simple, state: ShellState) -> list[str]:
    """Return the words of a command; a declaration's assignments are made, and leave their names."""
    words: list[str] = []
    for word in command.words:
        if isinstance(word, Assignment):
            if words[0] in LOCAL and "-g" not in words:
                state.keep(word.name)
            assign(word, state, declaring=words)
            words.append(word.name)
        else:
            words += fields(word, state)
    return words


def _start(walker: Walker, words: list[str], command: Simple, state: ShellState, given: str | None) -> Status:
    """Walk a command of these words: a function, a builtin, text that is printed, a script, or another program."""
    name, arguments = words[0], words[1:]
    if name in state.functions:
        return _call(walker, name, arguments, state, given)
    if name in ("eval", "source", ".", "exec", "command", "builtin"):
        return _special(walker, name, arguments, command, state, given)
    if name in builtins.BUILTINS:
        return builtins.BUILTINS[name](arguments, state, given)
    if name in builtins.PRINTING:
        return _print(name, arguments, command, state, given)
    if name == "tee":
        state.files |= dict.fromkeys(arguments, given or "")
        return True
    if state.output is not None and command.redirects == ():
        state.output.append(unknown(f"$({shown(' '.join(words))})"))
    return _program(walker, words, command, state)


def _print(name: str, arguments: list[str], command: Simple, state: ShellState, given: str | None) -> Status:
    text = builtins.output_of(name, arguments, given or "", state.files)
    if text is None:
        text = unknown(f"$({shown(' '.join([name, *arguments]))})")
    if any(redirect.operator in WRITING for redirect in command.redirects):
        write(command.redirects, text, state)
    elif state.output is not None:
        state.output.append(text)
    return True


def _call(walker: Walker, name: str, arguments: list[str], state: ShellState, given: str | None) -> Status:
    """Call a function of the script."""
    if walker.depth > 10 * DEEPEST:
        raise TooMuchError
    held = state.arguments, state.arguments_given, state.locals
    state.arguments, state.arguments_given, state.locals = tuple(arguments), True, {}
    try:
        return walker.run(state.functions[name], state, given)
    except Return as end:
        return end.status
    finally:
        state.restore(state.locals)
        state.arguments, state.arguments_given, state.locals = held


def _special(
    walker: Walker, name: str, arguments: list[str], command: Simple, state: ShellState, given: str | None
) -> Status:
    if name == "eval":
        return walker.run_text(" ".join(arguments), state, command.position)
    if name in ("source", "."):
        return _source(walker, arguments, state, command.position)
    rest = [word for index, word in enumerate(arguments) if index or word not in ("-a", "-c", "-l", "-p")]
    if arguments[:1] in (["-v"], ["-V"]):
        return None  # whether a program is there
    if not rest:
        return True
    status = _start(walker, rest, command, state, given)
    if name == "exec":
        raise Exit(status)
    return status


def _source(walker: Walker, arguments: list[str], state: ShellState, position: int) -> Status:
    text = walker.files(arguments[0]) if arguments and is_known(arguments[0]) else None
    text = state.files.get(arguments[0]) if text is None and arguments else text
    if text is None:
        return None
    held = state.arguments
    if len(arguments) > 1:
        state.arguments = tuple(arguments[1:])
    try:
        return walker.run_text(text, state, position)
    except Return as end:
        return end.status
    finally:
        state.arguments = held


def _program(walker: Walker, words: list[str], command: Simple, state: ShellState) -> Status:
    """Note a program that is started; a shell among them walks on."""
    inner = wrappers.unwrapped(words)
    script = wrappers.script_of(inner.words, lambda path: state.files.get(path) or walker.files(path))
    if script is None:
        line = walker.line_of(command.position)
        environment = state.environment() | dict(inner.environment)
        started = Started(words=inner.words, environment=environment, around=inner.around, line=line)
        if started not in state.started:
            state.started.append(started)
        return None
    inside, around = state.copy(), inner.around
    inside.variables = {name: value for name, value in inside.variables.items() if name in inside.exported}
    inside.functions, inside.own, inside.locals = {}, frozenset(), None
    inside.variables |= dict(inner.environment)
    inside.exported |= set(inner.environment)
    if "sbatch" in around:
        asked = sbatch(script.text) | sbatch("#SBATCH " + " ".join(around[1:]))
        inside.variables |= slurm_variables(asked)
        around = (*around, *(f"{option}={value}" for option, value in asked.items()))
    inside.arguments, inside.arguments_given, inside.name = script.arguments, True, script.name
    before = len(inside.started)
    try:
        status = walker.run_text(script.text, inside, command.position)
    except Exit as end:
        status = end.status
    state.started += [
        Started(words=s.words, environment=s.environment, around=(*around, *s.around), line=s.line)
        for s in inside.started[before:]
    ]
    state.assumed |= inside.assumed
    state.reasons |= inside.reasons
    if state.output is not None:
        state.output = inside.output
    return status


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
    assigned = set(ASSIGNED.findall(text)) | set(re.findall(r"\bfor\s+([A-Za-z_]\w*)\s+in\b", text))
    for names in re.findall(r"\bread\s+((?:-\w+\s+)*[A-Za-z_][\w ]*)", text):
        assigned |= {name for name in names.split() if not name.startswith("-")}
    return frozenset(assigned)


def input_of(redirects: Sequence[Redirect], state: ShellState, given: str | None) -> str | None:
    """Return what a command with these redirections has on its input."""
    for redirect in redirects:
        if redirect.body is not None:
            given = text_of(redirect.body, state) + "\n" * (redirect.operator == "<<<")
        elif redirect.operator == "<":
            path = text_of(redirect.target, state)
            given = state.files.get(path, unknown(f"the text of {shown(path)}"))
    return given


def write(redirects: Sequence[Redirect], text: str, state: ShellState) -> None:
    """Remember what the script writes into a file."""
    for redirect in redirects:
        if redirect.operator in WRITING:
            path = text_of(redirect.target, state)
            state.files[path] = (state.files.get(path, "") if redirect.operator == ">>" else "") + text
