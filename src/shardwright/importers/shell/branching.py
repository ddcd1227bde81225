"""Branches and loops. Where one hangs on what is not known, both ways are walked; loops are walked round by round."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardwright.importers.shell.conditions import negated
from shardwright.importers.shell.expansion import fields, number_of, pattern_of, text_of
from shardwright.importers.shell.state import ShellState, TooMuchError, merged
from shardwright.importers.shell.syntax import Command, CountedFor, For, If, ShellCase, Simple, While, words_of
from shardwright.importers.shell.syntax import Sequence as Commands
from shardwright.importers.shell.unknown import is_known, shown
from shardwright.importers.shell.walker import MOST_ROUNDS, Break, Continue, Ended, Status, Walker
from shardwright.importers.shell.words import ShellWord, Text


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
    walker: Walker, one: Command, other: Command, state: ShellState, why: str, given: str | None = None
) -> Status:
    """Walk both of two branches, and keep what they agree on. One that ends the script is not the one taken."""
    states = (state.copy(), state.copy())
    ends: list[Ended | None] = []
    statuses: list[Status] = []
    for branch, own in zip((one, other), states, strict=True):
        try:
            statuses.append(walker.run(branch, own, given))
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
    going.started += [item for own in states for item in own.started if item not in going.started]
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
        found = [pattern_of(pattern, state) for pattern in patterns]
        if "*" not in [pattern.literal for pattern in patterns] and (not is_known(subject) or None in found):
            rest = ShellCase(ShellWord((Text(subject, quoted=True),)), tuple(branches[index + 1 :]))
            return either(walker, body, rest, state, f"`case {shown(subject)}`")
        if any(re.fullmatch(pattern or "", subject, re.S) for pattern in found) or not is_known(subject):
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
