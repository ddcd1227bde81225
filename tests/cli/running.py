"""Runs the command line in this process and returns what a shell would see."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from shardwright.cli.app import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code, standard output and standard error."""

    code: int
    out: str
    err: str


def run(arguments: Sequence[str]) -> Outcome:
    """Run `shardwright` with `arguments`. Anything but a clean exit is an error of the test."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["shardwright", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return Outcome(code, out.getvalue(), err.getvalue())


def succeeded(arguments: Sequence[str]) -> Outcome:
    """Run what must go well."""
    outcome = run(arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def answered(arguments: Sequence[str]) -> Any:
    """Run what must go well, and return the JSON that it prints."""
    return json.loads(succeeded(arguments).out)


def refused(outcome: Outcome) -> str:
    """Return the message of a run that must have been refused: exit 2, words, no traceback, nothing on stdout."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert outcome.err.strip()
    return outcome.err
