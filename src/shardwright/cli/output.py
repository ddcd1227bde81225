"""What the commands write: text and JSON on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardwright.errors import Problem, bad
from shardwright.progress import heard, until

USUAL_WIDTH, NARROWEST, WIDEST = 110, 60, 160
PLAIN = str.maketrans(
    {"█": "#", "·": ".", "×": "x", "–": "-", "─": "-", "…": "...", "µ": "u"} | dict.fromkeys("▏▎▍▌▋▊▉", "+")
)
CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "?")  # escape sequences in a name, say
WIPE = "\r\033[K"  # a line that is shown for a while
PATIENCE_SECONDS, REFRESH_SECONDS = 1.0, 0.25
LEAST_PART = 0.02  # of work, from which on its pace tells when it ends


def terminal_width() -> int:
    """Return the columns of the terminal, or the usual width where output goes to a file or pipe."""
    if sys.stdout is None or not sys.stdout.isatty():
        return USUAL_WIDTH
    return min(max(shutil.get_terminal_size((USUAL_WIDTH, 24)).columns, NARROWEST), WIDEST)


def screen_width() -> int | None:
    """Return the columns of the terminal, or None where output goes to a file or pipe, which takes any."""
    return terminal_width() if sys.stdout is not None and sys.stdout.isatty() else None


def write(text: str) -> None:
    """Write a text on standard output, in plainer characters where its encoding lacks some. A reader that has gone
    (`| head`) is no error. Raises SpecError where nothing can be written, as on a full disk."""
    if sys.stdout is None:  # the shell's `>&-`
        raise bad("standard output", "is closed", "leave it open, or write to a file with -o")
    text = text.translate(CONTROL)
    if not text.endswith("\n"):
        text += "\n"
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(PLAIN).encode(encoding, "replace").decode(encoding)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise bad("standard output", f"cannot be written: {error.strerror}", "check the disk") from None


def write_json(document: object) -> None:
    """Write one JSON document on standard output."""
    write(json_text(document))


def json_text(document: object) -> str:
    """Return a document as JSON that standard output can encode."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=1, allow_nan=False)
    return text


@contextmanager
def ended_early(seconds: float | None) -> Iterator[None]:
    """Have the search inside answer with what it has after `seconds`, or when the user
    interrupts it; a second interrupt ends the program. Where interrupts are ignored, as under nohup, they stay so."""
    begin, interrupts = time.monotonic(), 0

    def interrupted(*_: object) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            raise KeyboardInterrupt
        note("stopping at the best plan so far; once more ends at once")

    before = signal.getsignal(signal.SIGINT)
    heeds = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if heeds:
        signal.signal(signal.SIGINT, interrupted)
    try:
        with until(lambda: interrupts > 0 or (seconds is not None and time.monotonic() - begin >= seconds)):
            yield
    finally:
        if heeds:
            signal.signal(signal.SIGINT, before)


@contextmanager
def progress(words: str, figure: Callable[[float], str] = str) -> Iterator[None]:
    """Say on a terminal's standard error what is going on, once it has taken a second, for how long and how much longer
    at most, with the best answer so far (`figure` writes its value) and its gap, and wipe it out at the end."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    done, begin, shown, answer = threading.Event(), time.monotonic(), [0.0], [""]

    def show() -> None:
        wait = PATIENCE_SECONDS
        while not done.wait(wait):
            wait = REFRESH_SECONDS
            line = progress_line(words, time.monotonic() - begin, shown[0]) + answer[0]
            width = shutil.get_terminal_size((USUAL_WIDTH, 24)).columns
            print(f"{WIPE}{line[: width - 1]}", end="", file=sys.stderr, flush=True)
        if wait < PATIENCE_SECONDS:
            print(WIPE, end="", file=sys.stderr, flush=True)

    def listen(part: float) -> None:
        shown[0] = max(shown[0], part)

    def listen_for_answers(value: float, bound: float | None) -> None:
        gap = f", within {value / bound - 1.0:.1%}" if bound else ""
        answer[0] = f"; best {figure(value)}{gap}"

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        with heard(listen, listen_for_answers):
            yield
    finally:
        done.set()
        thread.join()


def progress_line(words: str, seconds: float, part: float) -> str:
    """Return what is said of work that has taken so long for a part of it; nothing of what is left where that part is
    too small to tell."""
    line = f"{words}, {seconds:.0f} s"
    return f"{line}, at most {_rounded(seconds * (1.0 - part) / part)} left" if part >= LEAST_PART else f"{line} …"


def _rounded(seconds: float) -> str:
    if seconds < 60.0:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60.0)} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"


def complain(problems: tuple[Problem, ...]) -> None:
    """Write every problem with its remedy on standard error."""
    for problem in problems:
        place = f"{problem.path}: " if problem.path else ""
        print(f"error: {place}{problem.message}".translate(CONTROL), file=sys.stderr)
        if problem.hint:
            print(f"  {problem.hint}".translate(CONTROL), file=sys.stderr)


def note(words: str) -> None:
    """Write a remark on standard error."""
    if sys.stderr is not None:
        print(words.translate(CONTROL), file=sys.stderr)
