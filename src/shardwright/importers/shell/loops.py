"""Loops, walked round by round."""

from __future__ import annotations

from shardwright.importers.shell.branching import either
from shardwright.importers.shell.conditions import negated
from shardwright.importers.shell.control import Break, Continue
from shardwright.importers.shell.description import words_of
from shardwright.importers.shell.expansion import fields, number_of
from shardwright.importers.shell.state import ShellState, TooMuchError
from shardwright.importers.shell.syntax import CountedFor, For, While
from shardwright.importers.shell.syntax import Sequence as Commands
from shardwright.importers.shell.walker import MOST_ROUNDS, Status, Walker


def loop(walker: Walker, loop: While | For | CountedFor, state: ShellState) -> Status:
    try:
        if isinstance(loop, While):
            _while_loop(walker, loop, state)
        elif isinstance(loop, For):
            _for_loop(walker, loop, state)
        else:
            _counted_loop(walker, loop, state)
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


def _while_loop(walker: Walker, loop: While, state: ShellState) -> None:
    for _ in range(MOST_ROUNDS):
        with state.asked():
            status = walker.run(loop.condition, state)
        status = negated(status) if loop.until else status
        if status is None:
            either(walker, loop.body, Commands(()), state, f"`{words_of(loop.condition)}`")
            return
        if not status:
            return
        _once(walker, loop.body, state)
    raise TooMuchError


def _for_loop(walker: Walker, loop: For, state: ShellState) -> None:
    words = list(state.arguments) if loop.words is None else [w for word in loop.words for w in fields(word, state)]
    for word in words:
        state.put(loop.name, word)
        _once(walker, loop.body, state)


def _counted_loop(walker: Walker, loop: CountedFor, state: ShellState) -> None:
    number_of(loop.begin, state)
    for _ in range(MOST_ROUNDS):
        number = number_of(loop.condition, state)
        if number is None:
            either(walker, loop.body, Commands(()), state, "a count that is not known")
            return
        if number == 0:
            return
        _once(walker, loop.body, state)
        number_of(loop.step, state)
    raise TooMuchError
