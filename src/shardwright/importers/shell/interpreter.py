"""What a script would start, without starting anything.

The script is walked as bash would run it: assignments, branches, loops, functions, `eval`, `source`, `bash -c`. What a
program would print, what is in the file system and what comes from the environment is not known; such text is marked
(`unknown`). Where a branch hangs on it, both ways are walked, and only what they agree on stays known. Commands that
start other programs are collected (`state.Started`); nothing is executed, and no file is read but those that the
script sources or runs as scripts.
"""

from __future__ import annotations

from collections.abc import Callable

from shardwright.importers.shell import branching, syntax
from shardwright.importers.shell.assignment import names_assigned
from shardwright.importers.shell.conditions import DoubleBrackets, negated
from shardwright.importers.shell.expansion import number_of
from shardwright.importers.shell.parser import parse
from shardwright.importers.shell.programs import simple
from shardwright.importers.shell.redirection import WRITING, input_of, write
from shardwright.importers.shell.state import ShellState, TooMuchError
from shardwright.importers.shell.walker import DEEPEST, Exit, Status

MOST_STEPS = 100_000


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
            own = state.copy()
            last = index == len(pipeline.commands) - 1
            own.output = own.output if last else []
            try:
                status = self.run(command, own, given)
            except Exit:
                status = None
            state.started = own.started
            state.files |= own.files
            state.assumed |= own.assumed
            if last:
                state.output = own.output
            else:
                given = "".join(own.output or [])
        return negated(status) if pipeline.negated else status

    def group(self, group: syntax.ShellGroup, state: ShellState, given: str | None) -> Status:
        own = state.copy() if group.subshell else state
        held = own.output
        paths = [redirect for redirect in group.redirects if redirect.operator in WRITING]
        given = input_of(group.redirects, state, given)
        if paths:
            own.output = []
        try:
            status = self.run(group.body, own, given)
        except Exit:
            if not group.subshell:
                raise
            status = None
        if paths:
            write(group.redirects, "".join(own.output or []), own)
            own.output = held
        if group.subshell:
            state.started, state.output = own.started, own.output
            state.files |= own.files
        return status

    def line_of(self, position: int) -> int:
        """Return the line of the script that a command at a position of the text being walked comes from."""
        return self.text.count("\n", 0, (self.outer or [position])[0]) + 1
