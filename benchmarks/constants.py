"""The chosen constants of the cost model: what the ends of their ranges do to predictions of published runs.

.venv/bin/python -m benchmarks.constants [--markdown FILE]

A constant says its range in the comment beside it. Every fourth run that ships is predicted with each end of it, and
with the value. Constants of the physics alone (`compute.efficiency`) are judged by it, without the learned efficiency.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.cost.constants import Constant, constants

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.learned import default_efficiency
from shardwright.validation.case import Case, case_of
from shardwright.validation.facts import SkippedRunError
from shardwright.validation.forecast import forecast
from shardwright.validation.runs import published_runs

EACH = 4  # one run of so many
LEAST = 1e-3  # a run has moved if it does by as much
PAGE = """# What the chosen constants move

Written by `python -m benchmarks.constants --markdown`: {count} published runs, every fourth, predicted with the ends
of the range of each constant that is chosen by judgment. *Runs*: how many of them change by a thousandth and more;
then the median change of these at either end, in seconds of an iteration (in the width of the 80 % interval, or in
bytes, where seconds stay); and the median error of all predictions, {usual:.2%} with the values ({analytic:.2%} by
physics alone, `compute.efficiency`). What frameworks add and what is learned was fitted with the values in place and
is not fitted anew here: an end that errs less may be better only by chance, and one that errs more is not refuted.
What moves none of these runs speaks of others: optimizer state in host memory, links and layers that a user measured,
and runs that are like no published one.

| constant | value | from | to | runs | changes from | to | of | error from | to |
|---|--:|--:|--:|--:|--:|--:|---|--:|--:|
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is predicted, [N] each; `error` is the median of |predicted / measured - 1|."""

    seconds: Floats
    width: Floats
    bytes: Floats
    error: float


def main(markdown: str | None) -> None:
    """Print a row for every constant, and write them as a page if asked for."""
    cases = list(_cases())
    usual = {physics: predicted(cases, None, 0.0, physics=physics) for physics in (False, True)}
    rows = []
    for constant in list(constants()):
        if constant.limits is not None and constant.origin == "chosen":
            physics = constant.module.startswith("compute.")
            rows.append(_row(constant, cases, usual[physics], physics=physics))
            print(rows[-1], end="", flush=True)
    if markdown is not None:
        page = PAGE.format(count=len(cases), usual=usual[False].error, analytic=usual[True].error)
        Path(markdown).write_text(page + "".join(rows), encoding="utf-8")


def _cases() -> Iterator[Case]:
    for run in published_runs()[::EACH]:
        try:
            case = case_of(run)
        except SkippedRunError:
            continue
        if run.measured_iter_time_s:
            yield case


def _row(constant: Constant, cases: list[Case], usual: Figures, *, physics: bool) -> str:
    assert constant.limits is not None
    low, high, times = constant.limits
    ends = [predicted(cases, constant, end, physics=physics) for end in (low, high)]
    for kind in ("seconds", "width", "bytes"):
        before = getattr(usual, kind)
        changes = [getattr(end, kind) / before - 1.0 for end in ends]
        moved = np.abs(changes).max(axis=0) >= LEAST
        if moved.any():
            break
    cells = [f"{np.median(change[moved]):+.1%}" if moved.any() else "=" for change in changes]
    value = getattr(importlib.import_module(f"shardwright.cost.{constant.module}"), constant.name)
    shown = ["table", f"× {low:g}", f"× {high:g}"] if times else [f"{value:g}", f"{low:g}", f"{high:g}"]
    errors = [f"{end.error:.2%}" for end in ends]
    of = kind if moved.any() else ""
    named = f"`{constant.module}.{constant.name}`"
    return "| " + " | ".join([named, *shown, str(int(moved.sum())), *cells, of, *errors]) + " |\n"


def predicted(cases: list[Case], constant: Constant | None, value: float, *, physics: bool) -> Figures:
    """Return what is predicted with a constant at a value (or a table at multiples of it), in a process of its own,
    where no table is remembered from before."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_predict, args=(send, cases, constant, value, physics))
    process.start()
    send.close()
    found: Figures = receive.recv()
    process.join()
    return found


def _predict(send: Any, cases: list[Case], constant: Constant | None, value: float, physics: bool) -> None:
    if constant is not None:
        _set(constant, value)
    found = forecast(cases, Analytic() if physics else default_efficiency())
    measured = np.array([case.run.measured_iter_time_s for case in cases], dtype=float)
    error = float(np.median(np.abs(found.seconds / measured - 1.0)))
    send.send(Figures(found.seconds, found.high_seconds / found.low_seconds, found.peak_bytes, error))


def _set(constant: Constant, value: float) -> None:
    """Set a constant where it is said and wherever it was imported."""
    assert constant.limits is not None
    before = getattr(importlib.import_module(f"shardwright.cost.{constant.module}"), constant.name)
    wanted = multiplied(before, value) if constant.limits[2] else type(before)(value)
    for name, module in list(sys.modules.items()):
        if name.startswith("shardwright.") and getattr(module, constant.name, None) is before:
            setattr(module, constant.name, wanted)


def multiplied(table: Any, factor: float) -> Any:
    """Return a table of numbers, or of tables, with all of them `factor` times as large; words stay."""
    if isinstance(table, dict):
        return {name: multiplied(number, factor) for name, number in table.items()}
    if isinstance(table, tuple):
        return tuple(multiplied(number, factor) for number in table)
    return table * factor if isinstance(table, int | float) else table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown")
    main(parser.parse_args().markdown)
