"""What the commands write: text and JSON on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shardwright.errors import Problem, bad

USUAL_WIDTH, NARROWEST, WIDEST = 110, 80, 160
PLAIN = str.maketrans(
    {"█": "#", "·": ".", "×": "x", "–": "-", "─": "-", "…": "...", "µ": "u"} | dict.fromkeys("▏▎▍▌▋▊▉", "+")
)
CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "?")  # escape sequences in a name, say
PATIENCE_SECONDS = 1.0


def terminal_width() -> int:
    """Return the columns of the terminal, or the usual width where output goes to a file or pipe."""
    if sys.stdout is None or not sys.stdout.isatty():
        return USUAL_WIDTH
    return min(max(shutil.get_terminal_size((USUAL_WIDTH, 24)).columns, NARROWEST), WIDEST)


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
def progress(words: str) -> Iterator[None]:
    """Say on a terminal's standard error what is going on, once it has taken a second, and wipe it out at the end."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    shown = threading.Event()

    def show() -> None:
        shown.set()
        print(f"\r{words} …", end="", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


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
