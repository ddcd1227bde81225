"""What a user's own code raises, as one message that names its line."""

from __future__ import annotations

import contextlib
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from shardwright.errors import SpecError, bad


@contextlib.contextmanager
def user_code(what: str, at: str = "") -> Iterator[None]:
    """Turn whatever the user's code raises inside into a `SpecError`: `what` was being done, "cannot build its module".

    The place is the innermost line of the user's code, or `at` where there is none.
    """
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        place, line = user_line(causes(error))
        said = str(error).strip().splitlines() or [""]
        raise bad(
            place or at,
            f"{what}: {type(error).__name__}: {said[0]}{line}",
            "`debug=True` shows PyTorch's traceback",
        ) from error


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and what led to it, the last first."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def user_line(errors: list[BaseException]) -> tuple[str, str]:
    """Return `file:line` of the innermost line of the user's code and what it says; empty where it belongs to libraries
    and this package alone."""
    paths = sysconfig.get_paths()
    package = str(Path(__file__).parents[1])
    foreign = (package, str(Path(torch.__file__).parent), paths["stdlib"], paths["purelib"], "<")
    for error in reversed(errors):
        if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith(foreign):
            return f"{error.filename}:{error.lineno}", f" at `{(error.text or '').strip()}`"
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(foreign)
        ]
        if frames:
            line = f" at `{frames[-1].line}`" if frames[-1].line else ""
            return f"{frames[-1].filename}:{frames[-1].lineno}", line
    return "", ""
