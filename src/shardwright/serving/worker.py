"""Answers from a process of their own, which can be stopped at any moment: a search that no one waits for any more, or
that takes too long, is killed.

Processes come from a fork server that has the library loaded and warm (`warm`), so one is there in milliseconds. Where
there is no fork server (Windows) they start anew, in about a second.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

from shardwright.errors import SpecError, bad
from shardwright.serving.answers import Answer, error_answer

Question = Callable[[Any], Iterator[Answer]]
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_CONTEXT = multiprocessing.get_context(_METHOD)
_STARTING = Lock()


def prepare() -> None:
    """Start what makes processes, so that the first question does not wait for it."""
    if _METHOD == "forkserver":
        _CONTEXT.set_forkserver_preload(["__main__", "shardwright.serving.warm"])
    with asked(_nothing, None) as answers, suppress(EOFError):
        answers.recv()


@contextmanager
def asked(question: Question, request: Any) -> Iterator[Connection]:
    """Ask a question in a process of its own. The connection has its answers, then its end; on leaving the process is
    killed, wherever it is. `question` is a function of a module, `request` a plain value."""
    answers, theirs = _CONTEXT.Pipe(duplex=False)
    with answers:
        with _STARTING, theirs:
            process = _CONTEXT.Process(target=_answer, args=(question, request, theirs), daemon=True)  # type: ignore[attr-defined]
            process.start()
        try:
            yield answers
        finally:
            process.kill()
            process.join()
            process.close()


def answer_within(seconds: float, question: Callable[[], Answer]) -> Answer:
    """Return the one answer of a question, a partial call of a module's function, or errors where it takes longer."""
    with asked(once, question) as answers:
        if not answers.poll(seconds):
            return error_answer(
                bad("request", f"takes more than {seconds:.0f} s", "ask for fewer GPUs, or pin settings")
            )
        try:
            return dict(answers.recv())
        except EOFError:
            return error_answer(bad("request", "ended without an answer", "standard error has the reason"))


def once(question: Callable[[], Answer]) -> Iterator[Answer]:
    """Yield the one answer of a question."""
    yield question()


def _answer(question: Question, request: Any, answers: Connection) -> None:
    try:
        for answer in question(request):
            answers.send(answer)
    except SpecError as error:
        answers.send(error_answer(error))
    except BrokenPipeError:
        pass


def _nothing(request: None) -> Iterator[Answer]:
    return iter(())
