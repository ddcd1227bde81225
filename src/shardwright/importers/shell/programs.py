"""Simple commands: functions of the script, builtins, other scripts, and the programs that it starts."""

from __future__ import annotations

from shardwright.importers.shell import builtins, filters, wrappers
from shardwright.importers.shell.assignment import assign
from shardwright.importers.shell.expansion import fields
from shardwright.importers.shell.redirection import WRITING, input_of, write
from shardwright.importers.shell.slurm import sbatch, slurm_variables
from shardwright.importers.shell.state import ShellState, Started, TooMuchError
from shardwright.importers.shell.syntax import Assignment, Simple
from shardwright.importers.shell.unknown import is_known, shown, unknown
from shardwright.importers.shell.walker import DEEPEST, Exit, Return, Status, Walker
from shardwright.importers.shell.words import ShellWord

LOCAL = ("local", "declare", "typeset")  # what makes names of a function its own


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
    found: list[str] = []
    for word in command.words:
        if isinstance(word, Assignment):
            if found[0] in LOCAL and "-g" not in found:
                state.keep(word.name)
            assign(word, state, declaring=found)
            found.append(word.name)
        else:
            found += fields(word, state)
    return found


def _start(walker: Walker, words: list[str], command: Simple, state: ShellState, given: str | None) -> Status:
    """Walk a command of these words: a function, a builtin, text that is printed, a script, or another program."""
    name, arguments = words[0], words[1:]
    if name in state.functions:
        return _call(walker, name, arguments, state, given)
    if name in ("eval", "source", ".", "exec", "command", "builtin"):
        return _special(walker, name, arguments, command, state, given)
    if name in builtins.BUILTINS:
        return builtins.BUILTINS[name](arguments, state, given)
    if name in filters.PRINTING:
        return _print(name, arguments, command, state, given)
    if name == "tee":
        state.files |= dict.fromkeys(arguments, given or "")
        return True
    if state.output is not None and command.redirects == ():
        state.output.append(unknown(f"$({shown(' '.join(words))})"))
    return _program(walker, words, command, state)


def _print(name: str, arguments: list[str], command: Simple, state: ShellState, given: str | None) -> Status:
    text = filters.output_of(name, arguments, given or "", state.files)
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
    own, around = state.copy(), inner.around
    own.variables = {name: value for name, value in own.variables.items() if name in own.exported}
    own.functions, own.own, own.locals = {}, frozenset(), None
    own.variables |= dict(inner.environment)
    own.exported |= set(inner.environment)
    if "sbatch" in around:
        asked = sbatch(script.text) | sbatch("#SBATCH " + " ".join(around[1:]))
        own.variables |= slurm_variables(asked)
        around = (*around, *(f"{option}={value}" for option, value in asked.items()))
    own.arguments, own.arguments_given, own.name = script.arguments, True, script.name
    before = len(own.started)
    try:
        status = walker.run_text(script.text, own, command.position)
    except Exit as end:
        status = end.status
    state.started += [
        Started(words=s.words, environment=s.environment, around=(*around, *s.around), line=s.line)
        for s in own.started[before:]
    ]
    state.assumed |= own.assumed
    state.reasons |= own.reasons
    if state.output is not None:
        state.output = own.output
    return status
