"""Branches and loops, and the conditions of both. Where one hangs on what is not known, both ways are walked; loops are
walked round by round.

`test`, `[ … ]` and `[[ … ]]` are true, false, or None where they depend on what is not known.
"""

from __future__ import annotations

import operator as op
import re
from collections.abc import Callable, Sequence

from shardwright.importers.shell.arithmetic import ArithmeticFaultError, UnknownValueError, compute
from shardwright.importers.shell.expansion import fields, number_of, pattern_of, regex_of, text_of
from shardwright.importers.shell.state import (
    MOST_ROUNDS,
    Break,
    Continue,
    Ended,
    ShellState,
    Status,
    TooMuchError,
    Walker,
    merged,
)
from shardwright.importers.shell.syntax import Command, CountedFor, For, If, ShellCase, Simple, While, words_of
from shardwright.importers.shell.syntax import Sequence as Commands
from shardwright.importers.shell.unknown import UNKNOWN, is_known, shown
from shardwright.importers.shell.words import ShellWord, Text

NUMERIC = {"-eq": op.eq, "-ne": op.ne, "-lt": op.lt, "-le": op.le, "-gt": op.gt, "-ge": op.ge}
FILES = frozenset(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS")
LONGEST_SUBJECT = 10_000


def chain(walker: Walker, links: Sequence[tuple[str, Command]], state: ShellState, given: str | None) -> Status:
    """`&&` and `||`. A program whose status is not known is taken to succeed."""
    status = walker.run(links[0][1], state, given)
    for index, (sign, command) in enumerate(links[1:], 1):
        doubtful = status is None and not _is_program(links[index - 1][1])
        if doubtful:
            status = either(walker, command, Commands(()), state, words_of(links[index - 1][1]), given)
        elif (status is not False) == (sign == "&&"):
            status = walker.run(command, state, given)
    return status


def either(
    walker: Walker, first: Command, other: Command, state: ShellState, why: str, given: str | None = None
) -> Status:
    """Walk both of two branches, and keep what they agree on. One that ends the script is not the one taken."""
    states = (state.copy(), state.copy())
    ends: list[Ended | None] = []
    statuses: list[Status] = []
    for branch, inner in zip((first, other), states, strict=True):
        try:
            statuses.append(walker.run(branch, inner, given))
            ends.append(None)
        except Ended as end:
            statuses.append(None)
            ends.append(end)
    if ends[0] is not None and ends[1] is not None:
        state.take(states[0])
        raise ends[0]
    if ends[0] is None and ends[1] is None:
        state.take(merged(states[0], states[1], why))
        return statuses[0] if statuses[0] == statuses[1] else None
    going = states[0] if ends[0] is None else states[1]
    going.started += [item for inner in states for item in inner.started if item not in going.started]
    state.take(going)
    return statuses[0] if ends[0] is None else statuses[1]


def conditional(
    walker: Walker, branches: list[tuple[Commands, Commands]], otherwise: Commands, state: ShellState
) -> Status:
    if not branches:
        return walker.run(otherwise, state)
    (condition, body), rest = branches[0], branches[1:]
    with state.asked():
        status = walker.run(condition, state)
    if status is None:
        return either(walker, body, If(tuple(rest), otherwise), state, f"`{words_of(condition)}`")
    return walker.run(body, state) if status else conditional(walker, rest, otherwise, state)


def case(walker: Walker, case: ShellCase, state: ShellState) -> Status:
    with state.asked():
        subject = text_of(case.subject, state)
    return _cases(walker, subject, list(case.branches), state)


def _cases(
    walker: Walker, subject: str, branches: list[tuple[tuple[ShellWord, ...], Commands, str]], state: ShellState
) -> Status:
    for index, (patterns, body, end) in enumerate(branches):
        expressions = [pattern_of(pattern, state) for pattern in patterns]
        if "*" not in [pattern.literal for pattern in patterns] and (not is_known(subject) or None in expressions):
            rest = ShellCase(ShellWord((Text(subject, quoted=True),)), tuple(branches[index + 1 :]))
            return either(walker, body, rest, state, f"`case {shown(subject)}`")
        if any(re.fullmatch(pattern or "", subject, re.S) for pattern in expressions) or not is_known(subject):
            status = walker.run(body, state)
            while end == ";&" and index + 1 < len(branches):
                index += 1
                _, body, end = branches[index]
                status = walker.run(body, state)
            if end != ";;&":
                return status
    return True


def _is_program(command: Command) -> bool:
    """Whether a command is another program, which is taken to succeed, rather than a question."""
    if not isinstance(command, Simple) or not command.words or not isinstance(command.words[0], ShellWord):
        return False
    return command.words[0].literal not in ("[", "test", "command", "type", "which", "grep")


def loop(walker: Walker, loop: While | For | CountedFor, state: ShellState) -> Status:
    """Walk a loop round by round."""
    try:
        if isinstance(loop, For):
            listed = None if loop.words is None else [text for word in loop.words for text in fields(word, state)]
            for text in state.arguments if listed is None else listed:
                state.put(loop.name, text)
                _once(walker, loop.body, state)
        else:
            _conditional_loop(walker, loop, state)
    except Continue:
        raise
    except Break as end:
        if end.loops > 1:
            raise Break(end.loops - 1) from None
    return True


def _once(walker: Walker, body: Commands, state: ShellState) -> None:
    try:
        walker.run(body, state)
    except Continue as end:
        if end.loops > 1:
            raise Continue(end.loops - 1) from None


def _conditional_loop(walker: Walker, loop: While | CountedFor, state: ShellState) -> None:
    if isinstance(loop, CountedFor):
        number_of(loop.begin, state)
    for _ in range(MOST_ROUNDS):
        status, why = _goes_on(walker, loop, state)
        if status is None:
            either(walker, loop.body, Commands(()), state, why)
        if not status:
            return
        _once(walker, loop.body, state)
        if isinstance(loop, CountedFor):
            number_of(loop.step, state)
    raise TooMuchError


def _goes_on(walker: Walker, loop: While | CountedFor, state: ShellState) -> tuple[Status, str]:
    """Return whether another round follows, and the condition in words."""
    if isinstance(loop, CountedFor):
        number = number_of(loop.condition, state)
        return None if number is None else number != 0, "a count that is not known"
    with state.asked():
        status = walker.run(loop.condition, state)
    return negated(status) if loop.until else status, f"`{words_of(loop.condition)}`"


def test(words: Sequence[str], state: ShellState) -> bool | None:
    """Return what `[ words ]` says. As a shell does, words that make no sense together are false."""
    if "-o" in words:
        where = words.index("-o")
        return disjunction(test(words[:where], state), test(words[where + 1 :], state))
    if "-a" in words[1:-1] and len(words) > 3:
        where = words.index("-a", 1)
        return conjunction(test(words[:where], state), test(words[where + 1 :], state))
    if words and words[0] == "!" and len(words) > 1:
        return negated(test(words[1:], state))
    if len(words) >= 3 and words[0] == "(" and words[-1] == ")":
        return test(words[1:-1], state)
    if not words:
        return False
    if len(words) == 1:
        return nonempty(words[0])
    if len(words) == 2:
        return _unary(words[0], words[1], state)
    return _binary(words[0], words[1], words[2], state) if len(words) == 3 else False


def conjunction(left: bool | None, right: bool | None) -> bool | None:
    """Return the conjunction of three-valued truths."""
    return False if left is False or right is False else None if left is None or right is None else True


def disjunction(left: bool | None, right: bool | None) -> bool | None:
    """Return the disjunction of three-valued truths."""
    return True if left or right else None if left is None or right is None else False


def negated(truth: bool | None) -> bool | None:
    """Return the negation of a three-valued truth."""
    return None if truth is None else not truth


def nonempty(text: str) -> bool | None:
    """Return whether text is not empty: what is unknown in it may be nothing."""
    if is_known(text):
        return bool(text)
    return True if UNKNOWN.sub("", text) else None


def _unary(operator: str, operand: str, state: ShellState) -> bool | None:
    if operator == "-z":
        return negated(nonempty(operand))
    if operator == "-n":
        return nonempty(operand)
    if operator == "-v":
        if operand not in state.variables and operand not in state.own:
            state.assumed.setdefault(operand, "")
        return operand in state.variables
    if operator in FILES:
        return True if operand in state.files and operator in ("-e", "-f", "-r", "-s") else None
    return False


def _binary(left: str, operator: str, right: str, state: ShellState) -> bool | None:
    if operator in ("=", "==", "!=") or operator in ("<", ">"):
        if not (is_known(left) and is_known(right)):
            return None
        holds = {"<": left < right, ">": left > right}.get(operator, left == right)
        return not holds if operator == "!=" else holds
    if operator in NUMERIC:
        return _numeric(left, operator, right, state)
    return None if operator in ("-nt", "-ot", "-ef") else False


def _numeric(left: str, operator: str, right: str, state: ShellState) -> bool | None:
    try:
        number, other = (compute(text, state.read, state.put) for text in (left, right))
    except UnknownValueError:
        return None
    except ArithmeticFaultError:
        return False
    return bool(NUMERIC[operator](number, other))


class DoubleBrackets:
    """`[[ words ]]`, read from the left; `position` is that of the next word."""

    def __init__(self, words: Sequence[ShellWord | str], state: ShellState) -> None:
        self.words, self.state = words, state
        self.position = 0

    def truth(self) -> bool | None:
        return self.joined("||", disjunction, self.conjunction)

    def conjunction(self) -> bool | None:
        return self.joined("&&", conjunction, self.term)

    def joined(
        self,
        sign: str,
        join: Callable[[bool | None, bool | None], bool | None],
        read: Callable[[], bool | None],
    ) -> bool | None:
        """Read parts with a sign between them, and return the truth of all."""
        truth = read()
        while self.sign() == sign:
            self.position += 1
            truth = join(truth, read())
        return truth

    def sign(self) -> str:
        word = self.words[self.position] if self.position < len(self.words) else ""
        return word if isinstance(word, str) else ""

    def term(self) -> bool | None:
        sign = self.sign()
        if sign == "!":
            self.position += 1
            return negated(self.term())
        if sign == "(":
            self.position += 1
            truth = self.truth()
            self.position += 1
            return truth
        if re.fullmatch(r"-[a-zA-Z]{1,2}", sign):
            self.position += 1
            return _unary(sign, self.operand(), self.state)
        left = self.operand()
        operator = self.sign()
        if not operator or operator in ("&&", "||", ")"):
            return nonempty(left)
        self.position += 1
        if operator in ("==", "=", "!="):
            return self.matches(left, negate=operator == "!=")
        if operator == "=~":
            return self.found(left)
        return _binary(left, operator, self.operand(), self.state)

    def operand(self) -> str:
        word = self.words[self.position] if self.position < len(self.words) else ""
        self.position += 1
        return word if isinstance(word, str) else text_of(word, self.state)

    def pattern(self) -> ShellWord:
        word = self.words[self.position] if self.position < len(self.words) else ""
        self.position += 1
        return ShellWord((Text(word),)) if isinstance(word, str) else word

    def matches(self, left: str, *, negate: bool) -> bool | None:
        pattern = pattern_of(self.pattern(), self.state)
        if pattern is None or not is_known(left) or len(left) > LONGEST_SUBJECT:
            return None
        return (re.fullmatch(pattern, left, re.S) is not None) != negate

    def found(self, left: str) -> bool | None:
        pattern = regex_of(self.pattern(), self.state)
        if pattern is None or not is_known(left) or len(left) > 200 or len(pattern) > 200:
            return None
        try:
            match = re.search(pattern, left)
        except re.error:
            return None
        if match:
            groups = (match[0], *(group or "" for group in match.groups()))
            self.state.put("BASH_REMATCH", {str(number): group for number, group in enumerate(groups)})
        return match is not None
