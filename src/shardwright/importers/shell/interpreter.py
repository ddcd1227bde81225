"""What a script would start, without starting anything.

The script is walked as bash would run it: assignments, branches, loops, functions, `eval`, `source`, `bash -c`. What a
program would print, what is in the file system and what comes from the environment is not known; such text is marked
(`unknown`). Where a branch hangs on it, both ways are walked, and only what they agree on stays known. Commands that
start other programs are collected (`state.Started`); nothing is executed, and no file is read but those that the
script sources or runs as scripts.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence

from shardwright.importers.shell import builtins, filters, wrappers
from shardwright.importers.shell.assignment import assign, names_assigned
from shardwright.importers.shell.conditions import DoubleBrackets, negated
from shardwright.importers.shell.control import Break, Continue, Exit, Return
from shardwright.importers.shell.description import words_of
from shardwright.importers.shell.expansion import fields, number_of, pattern_of, text_of
from shardwright.importers.shell.parser import parse
from shardwright.importers.shell.redirection import WRITING, input_of, write
from shardwright.importers.shell.slurm import sbatch, slurm_variables
from shardwright.importers.shell.state import Started, State, TooMuchError, merged
from shardwright.importers.shell.syntax import (
    Assignment,
    Case,
    Chain,
    Command,
    Compute,
    Condition,
    CountedFor,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Simple,
    While,
)
from shardwright.importers.shell.syntax import Sequence as Commands
from shardwright.importers.shell.unknown import is_known, shown, unknown
from shardwright.importers.shell.words import Text, Word

MOST_STEPS, MOST_ROUNDS, DEEPEST = 100_000, 2_000, 40
Status = bool | None
End = Exit | Return | Break | Continue


class Interpreter:
    """Walks the commands of one script. `files` finds the text of a script that this one names, or None."""

    def __init__(self, text: str, files: Callable[[str], str | None]) -> None:
        self.text, self.files = text, files
        self.steps = self.depth = 0
        self.outer: list[int] = []  # positions in `text` of the commands whose text is walked

    def run_text(self, text: str, state: State, position: int) -> Status:
        """Walk text as a script of its own: `eval`, `source`, `bash -c`. Raises ShellSyntaxError for what is none."""
        tree = parse(text)
        state.own |= names_assigned(text)
        self.outer.append(position)
        try:
            return self.run(tree, state)
        finally:
            self.outer.pop()

    def run(self, command: Command, state: State, given: str | None = None) -> Status:
        """Walk a command that has `given` on its input; return its status, None where that is not known."""
        self.steps += 1
        self.depth += 1
        if self.steps > MOST_STEPS or self.depth > 12 * DEEPEST:
            raise TooMuchError
        try:
            return self._run(command, state, given)
        finally:
            self.depth -= 1

    def _run(self, command: Command, state: State, given: str | None) -> Status:
        match command:
            case Simple():
                return self.simple(command, state, given)
            case Commands(commands=commands):
                return [True, *(self.run(item, state, given) for item in commands)][-1]
            case Chain(links=links):
                return self.chain(links, state, given)
            case Pipeline():
                return self.pipeline(command, state, given)
            case If():
                return self.conditional(list(command.branches), command.otherwise, state)
            case Case():
                return self.case(command, state)
            case Function(name=name, body=body):
                state.functions[name] = body
                return True
            case Group():
                return self.group(command, state, given)
            case While() | For() | CountedFor():
                return self.loop(command, state)
            case Condition(words=words):
                return self.asked(lambda: DoubleBrackets(words, state).truth(), state)
            case Compute(expression=expression):
                number = number_of(expression, state)
                return None if number is None else number != 0

    def asked(self, question: Callable[[], Status], state: State) -> Status:
        """Answer a question of the script; variables that nobody sets are unset in it."""
        before, state.asking = state.asking, True
        try:
            return question()
        finally:
            state.asking = before

    def chain(self, links: Sequence[tuple[str, Command]], state: State, given: str | None) -> Status:
        """`&&` and `||`. A program whose status is not known is taken to succeed."""
        status = self.run(links[0][1], state, given)
        for index, (sign, command) in enumerate(links[1:], 1):
            doubtful = status is None and not _is_program(links[index - 1][1])
            if doubtful:
                status = self.either(command, Commands(()), state, words_of(links[index - 1][1]), given)
            elif (status is not False) == (sign == "&&"):
                status = self.run(command, state, given)
        return status

    def either(self, one: Command, other: Command, state: State, why: str, given: str | None = None) -> Status:
        """Walk both of two branches, and keep what they agree on. One that ends the script is not the one taken."""
        states = (state.copy(), state.copy())
        ends: list[End | None] = []
        statuses: list[Status] = []
        for branch, own in zip((one, other), states, strict=True):
            try:
                statuses.append(self.run(branch, own, given))
                ends.append(None)
            except (Exit, Return, Break, Continue) as end:
                statuses.append(None)
                ends.append(end)
        if ends[0] is not None and ends[1] is not None:
            state.take(states[0])
            raise ends[0]
        if ends[0] is None and ends[1] is None:
            state.take(merged(states[0], states[1], why))
            return statuses[0] if statuses[0] == statuses[1] else None
        going = states[0] if ends[0] is None else states[1]
        going.started += [item for own in states for item in own.started if item not in going.started]
        state.take(going)
        return statuses[0] if ends[0] is None else statuses[1]

    def conditional(self, branches: list[tuple[Commands, Commands]], otherwise: Commands, state: State) -> Status:
        if not branches:
            return self.run(otherwise, state)
        (condition, body), rest = branches[0], branches[1:]
        status = self.asked(lambda: self.run(condition, state), state)
        if status is None:
            return self.either(body, If(tuple(rest), otherwise), state, f"`{words_of(condition)}`")
        return self.run(body, state) if status else self.conditional(rest, otherwise, state)

    def pipeline(self, pipeline: Pipeline, state: State, given: str | None) -> Status:
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

    def loop(self, loop: While | For | CountedFor, state: State) -> Status:
        try:
            if isinstance(loop, While):
                self.while_loop(loop, state)
            elif isinstance(loop, For):
                self.for_loop(loop, state)
            else:
                self.counted_loop(loop, state)
        except Break:
            pass
        return True

    def once(self, body: Commands, state: State) -> None:
        with contextlib.suppress(Continue):
            self.run(body, state)

    def while_loop(self, loop: While, state: State) -> None:
        for _ in range(MOST_ROUNDS):
            status = self.asked(lambda: self.run(loop.condition, state), state)
            if loop.until:
                status = negated(status)
            if status is None:
                self.either(loop.body, Commands(()), state, f"`{words_of(loop.condition)}`")
                return
            if not status:
                return
            self.once(loop.body, state)
        raise TooMuchError

    def for_loop(self, loop: For, state: State) -> None:
        words = list(state.arguments) if loop.words is None else [w for word in loop.words for w in fields(word, state)]
        for word in words:
            state.put(loop.name, word)
            self.once(loop.body, state)

    def counted_loop(self, loop: CountedFor, state: State) -> None:
        number_of(loop.begin, state)
        for _ in range(MOST_ROUNDS):
            number = number_of(loop.condition, state)
            if number is None:
                self.either(loop.body, Commands(()), state, "a count that is not known")
                return
            if number == 0:
                return
            self.once(loop.body, state)
            number_of(loop.step, state)
        raise TooMuchError

    def case(self, case: Case, state: State) -> Status:
        before, state.asking = state.asking, True
        subject = text_of(case.subject, state)
        state.asking = before
        return self.cases(subject, list(case.branches), state)

    def cases(self, subject: str, branches: list[tuple[tuple[Word, ...], Commands, str]], state: State) -> Status:
        for index, (patterns, body, end) in enumerate(branches):
            found = [pattern_of(pattern, state) for pattern in patterns]
            if "*" not in [pattern.literal for pattern in patterns] and (not is_known(subject) or None in found):
                rest = Case(Word((Text(subject, quoted=True),)), tuple(branches[index + 1 :]))
                return self.either(body, rest, state, f"`case {shown(subject)}`")
            if any(re.fullmatch(pattern or "", subject, re.S) for pattern in found) or not is_known(subject):
                status = self.run(body, state)
                while end == ";&" and index + 1 < len(branches):
                    index += 1
                    _, body, end = branches[index]
                    status = self.run(body, state)
                if end != ";;&":
                    return status
        return True

    def group(self, group: Group, state: State, given: str | None) -> Status:
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

    def simple(self, command: Simple, state: State, given: str | None) -> Status:
        assigned = None
        if not command.words:
            for assignment in command.assignments:
                assign(assignment, state)
            return True
        words = self.words(command, state)
        given = input_of(command.redirects, state, given)
        if command.assignments and words:
            assigned = state.copy()
            for assignment in command.assignments:
                assign(assignment, assigned)
                assigned.exported.add(assignment.name)
        if not words:
            return True
        return self.start(words, command, assigned or state, state, given)

    def words(self, command: Simple, state: State) -> list[str]:
        """Return the words of a command; a declaration's assignments are made, and leave their names."""
        found: list[str] = []
        for word in command.words:
            if isinstance(word, Assignment):
                assign(word, state, declaring=found)
                found.append(word.name)
            else:
                found += fields(word, state)
        return found

    def start(self, words: list[str], command: Simple, given_state: State, state: State, given: str | None) -> Status:
        """Walk a command of these words: a function, a builtin, text that is printed, a script, or another program."""
        name, arguments = words[0], words[1:]
        if name in state.functions:
            return self.call(name, arguments, state, given)
        if name in ("eval", "source", ".", "exec", "command", "builtin"):
            return self.special(name, arguments, command, given_state, state, given)
        if name in builtins.BUILTINS:
            asking = name in ("[", "test")
            if asking:
                return self.asked(lambda: builtins.BUILTINS[name](self.words(command, state)[1:], state, given), state)
            return builtins.BUILTINS[name](arguments, state, given)
        if name in filters.PRINTING:
            return self.print(name, arguments, command, state, given)
        if name == "tee":
            for path in arguments:
                state.files[path] = given or ""
            return True
        if state.output is not None and command.redirects == ():
            state.output.append(unknown(f"$({shown(' '.join(words))})"))
        return self.program(words, command, given_state, state)

    def print(self, name: str, arguments: list[str], command: Simple, state: State, given: str | None) -> Status:
        text = filters.output_of(name, arguments, given or "", state.files)
        if text is None:
            text = unknown(f"$({shown(' '.join([name, *arguments]))})")
        if any(redirect.operator in WRITING for redirect in command.redirects):
            write(command.redirects, text, state)
        elif state.output is not None:
            state.output.append(text)
        return True

    def call(self, name: str, arguments: list[str], state: State, given: str | None) -> Status:
        """Call a function of the script."""
        if self.depth > 10 * DEEPEST:
            raise TooMuchError
        held, was_given = state.arguments, state.arguments_given
        state.arguments, state.arguments_given = tuple(arguments), True
        try:
            return self.run(state.functions[name], state, given)
        except Return as end:
            return end.status
        finally:
            state.arguments, state.arguments_given = held, was_given

    def special(
        self, name: str, arguments: list[str], command: Simple, given_state: State, state: State, given: str | None
    ) -> Status:
        if name == "eval":
            return self.run_text(" ".join(arguments), state, command.position)
        if name in ("source", "."):
            return self.source(arguments, state, command.position)
        rest = [word for index, word in enumerate(arguments) if index or word not in ("-a", "-c", "-l", "-p")]
        if arguments[:1] in (["-v"], ["-V"]):
            return None  # whether a program is there
        if not rest:
            return True
        status = self.start(rest, command, given_state, state, given)
        if name == "exec":
            raise Exit(status)
        return status

    def source(self, arguments: list[str], state: State, position: int) -> Status:
        text = self.files(arguments[0]) if arguments and is_known(arguments[0]) else None
        text = state.files.get(arguments[0]) if text is None and arguments else text
        if text is None:
            return None
        held = state.arguments
        if len(arguments) > 1:
            state.arguments = tuple(arguments[1:])
        try:
            return self.run_text(text, state, position)
        except Return as end:
            return end.status
        finally:
            state.arguments = held

    def program(self, words: list[str], command: Simple, given_state: State, state: State) -> Status:
        """Note a program that is started; a shell among them walks on."""
        inner = wrappers.unwrapped(words)
        script = wrappers.script_of(inner.words, lambda path: state.files.get(path) or self.files(path))
        if script is None:
            line = self.text.count("\n", 0, (self.outer or [command.position])[0]) + 1
            environment = given_state.environment() | dict(inner.environment)
            started = Started(words=inner.words, environment=environment, around=inner.around, line=line)
            if started not in state.started:
                state.started.append(started)
            return None
        own, around = given_state.copy(), inner.around
        own.variables = {name: value for name, value in own.variables.items() if name in own.exported}
        own.functions, own.own = {}, frozenset()
        own.variables |= dict(inner.environment)
        own.exported |= set(inner.environment)
        if "sbatch" in around:
            asked = sbatch(script.text) | sbatch("#SBATCH " + " ".join(around[1:]))
            own.variables |= slurm_variables(asked)
            around = (*around, *(f"{option}={value}" for option, value in asked.items()))
        own.arguments, own.arguments_given, own.name = script.arguments, True, script.name
        before = len(own.started)
        try:
            status = self.run_text(script.text, own, command.position)
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


def _is_program(command: Command) -> bool:
    """Whether a command is another program, which is taken to succeed, rather than a question."""
    if not isinstance(command, Simple) or not command.words or not isinstance(command.words[0], Word):
        return False
    return command.words[0].literal not in ("[", "test", "command", "type", "which", "grep")
