"""A launch script as the commands that it starts, without starting anything.

The script is walked as bash would run it: assignments, branches, loops, functions, `eval`, `source`, `bash -c`. What a
program would print, what is in the file system and what comes from the environment is not known; such text is marked
(`unknown`). Where a branch hangs on it, both ways are walked, and only what they agree on stays known. Commands that
start other programs are collected (`state.Started`); nothing is executed, and no file is read but those that the script
sources or runs as scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from shardwright.errors import bad
from shardwright.importers.shell import branching, syntax
from shardwright.importers.shell.branching import DoubleBrackets, negated
from shardwright.importers.shell.expansion import DemandedError, number_of
from shardwright.importers.shell.parser import parse
from shardwright.importers.shell.programs import WRITING, input_of, names_assigned, simple, write
from shardwright.importers.shell.state import DEEPEST, Ended, Exit, ShellState, Started, Status, TooMuchError
from shardwright.importers.shell.unknown import purged, shown, unknown
from shardwright.importers.shell.words import NotReadError, ShellSyntaxError
from shardwright.importers.shell.wrappers import sbatch, slurm_variables
from shardwright.records import record

LARGEST_FILE = 1_000_000
MOST_STEPS = 100_000


@record
class ShellScript:
    """What a script starts, in order. `assumed` are variables that it does not set, with the defaults taken instead;
    `arrays` the elements of every array and variable, `reasons` why a variable is not known, `files` what the script
    writes into files, `slurm` what its #SBATCH lines ask for; `text` is the script itself, `called` those that it
    starts or sources."""

    started: tuple[Started, ...]
    assumed: Mapping[str, str]
    arrays: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, str]
    files: Mapping[str, str]
    slurm: Mapping[str, str]
    text: str
    called: tuple[str, ...] = ()


def read_script(
    text: str,
    name: str,
    *,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ShellScript:
    """Return what the script `text` starts with `arguments` and the variables of `environment`.

    Nothing is run. Scripts that it sources or calls are read from `folder`. Raises SpecError for text that is no
    shell script, and for one that grows beyond all reason.
    """
    text = purged(text)
    slurm = sbatch(text)
    given = (slurm_variables(slurm) if slurm else {}) | dict(environment or {})
    called: list[str] = []
    interpreter = Interpreter(text, _finder(folder, called))
    state = ShellState(
        name=name,
        own=names_assigned(text),
        substitute=lambda script, state: _output(interpreter, script, state),
        variables=dict(given),
        exported=set(given),
        arguments=arguments,
        arguments_given=bool(arguments),
    )
    try:
        interpreter.run(parse(text), state)
    except Ended:
        pass
    except DemandedError as demanded:
        variable, _, words = str(demanded).partition(": ")
        raise bad(f"{name}: {variable}", f"the script ends without it: {words}", f"add --env {variable}=…") from None
    except ShellSyntaxError as error:
        line = text.count("\n", 0, min(error.position, len(text))) + 1
        reason = "not read here" if isinstance(error, NotReadError) else "bash refuses it"
        raise bad(f"{name}: line {line}", f"{reason}: {error}", "correct the script") from None
    except (TooMuchError, RecursionError):
        raise bad(name, "grows to more than a launch script is as it is read", "is this the right file?") from None
    return ShellScript(
        started=tuple(state.started),
        assumed=dict(state.assumed),
        arrays={key: tuple(state.items(key)) for key in state.variables},
        reasons=dict(state.reasons),
        files=dict(state.files),
        slurm=slurm,
        text=text,
        called=tuple(called),
    )


def _output(interpreter: Interpreter, script: str, state: ShellState) -> str:
    """Return what `$(script)` becomes."""
    inner = state.copy()
    inner.output, inner.started = [], []
    try:
        interpreter.run(parse(script), inner)
    except Ended:
        pass
    except ShellSyntaxError:
        return unknown(f"$({shown(script).strip()})")
    state.assumed |= inner.assumed
    return "".join(inner.output or []).rstrip("\n")


def _finder(folder: Path | None, called: list[str]) -> Callable[[str], str | None]:
    """Return what finds the text of a script by its name, in `folder` alone, and adds it to `called`."""

    def find(name: str) -> str | None:
        if folder is None or "\0" in name:
            return None
        for path in (folder / name, folder / Path(name).name):
            try:
                if path.is_file() and path.stat().st_size <= LARGEST_FILE:
                    called.append(purged(path.read_text(encoding="utf-8")))
                    return called[-1]
            except (OSError, UnicodeDecodeError):
                continue
        return None

    return find


class Interpreter:
    """Walks the commands of one script. `files` finds the text of a script that this one names, or None."""

    def __init__(self, text: str, files: Callable[[str], str | None]) -> None:
        self.text, self.files = text, files
        self.steps = self.depth = 0
        self.outer: list[int] = []  # positions in `text` of the commands whose text is walked

    def run_text(self, text: str, state: ShellState, position: int) -> Status:
        """Walk text as a script of its own: `eval`, `source`, `bash -c`. Raises ShellSyntaxError for what is none."""
        tree = parse(text)
        state.own |= names_assigned(text)
        self.outer.append(position)
        try:
            return self.run(tree, state)
        finally:
            self.outer.pop()

    def run(self, command: syntax.Command, state: ShellState, given: str | None = None) -> Status:
        """Walk a command that has `given` on its input; return its status, None where that is not known."""
        self.steps += 1
        self.depth += 1
        if self.steps > MOST_STEPS or self.depth > 12 * DEEPEST:
            raise TooMuchError
        try:
            return self._run(command, state, given)
        finally:
            self.depth -= 1

    def _run(self, command: syntax.Command, state: ShellState, given: str | None) -> Status:
        match command:
            case syntax.Simple():
                return simple(self, command, state, given)
            case syntax.Sequence(commands=commands):
                return [True, *(self.run(item, state, given) for item in commands)][-1]
            case syntax.Chain(links=links):
                return branching.chain(self, links, state, given)
            case syntax.Pipeline():
                return self.pipeline(command, state, given)
            case syntax.If():
                return branching.conditional(self, list(command.branches), command.otherwise, state)
            case syntax.ShellCase():
                return branching.case(self, command, state)
            case syntax.Function(name=name, body=body):
                state.functions[name] = body
                return True
            case syntax.ShellGroup():
                return self.group(command, state, given)
            case syntax.While() | syntax.For() | syntax.CountedFor():
                return branching.loop(self, command, state)
            case syntax.Condition(words=words):
                with state.asked():
                    return DoubleBrackets(words, state).truth()
            case syntax.Compute(expression=expression):
                number = number_of(expression, state)
                return None if number is None else number != 0

    def pipeline(self, pipeline: syntax.Pipeline, state: ShellState, given: str | None) -> Status:
        """Each command but the last gives its output to the next; all walk in states of their own."""
        if len(pipeline.commands) == 1:
            return negated(self.run(pipeline.commands[0], state, given))
        status: Status = True
        for index, command in enumerate(pipeline.commands):
            stage = state.copy()
            last = index == len(pipeline.commands) - 1
            stage.output = stage.output if last else []
            try:
                status = self.run(command, stage, given)
            except Exit:
                status = None
            state.started = stage.started
            state.files |= stage.files
            state.assumed |= stage.assumed
            if last:
                state.output = stage.output
            else:
                given = "".join(stage.output or [])
        return negated(status) if pipeline.negated else status

    def group(self, group: syntax.ShellGroup, state: ShellState, given: str | None) -> Status:
        inside = state.copy() if group.subshell else state
        held = inside.output
        paths = [redirect for redirect in group.redirects if redirect.operator in WRITING]
        given = input_of(group.redirects, state, given)
        if paths:
            inside.output = []
        try:
            status = self.run(group.body, inside, given)
        except Exit:
            if not group.subshell:
                raise
            status = None
        if paths:
            write(group.redirects, "".join(inside.output or []), inside)
            inside.output = held
        if group.subshell:
            state.started, state.output = inside.started, inside.output
            state.files |= inside.files
        return status

    def line_of(self, position: int) -> int:
        """Return the line of the script that a command at a position of the text being walked comes from."""
        return self.text.count("\n", 0, (self.outer or [position])[0]) + 1
