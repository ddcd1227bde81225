"""The knobs of the mixed search: what half and twice of each does to its plans and to what it proves.

.venv/bin/python benchmarks/knobs.py [--markdown FILE]

The cases are some of `benchmarks/mixed.py`. A knob that is a factor is halved and doubled in what it has beyond one.
Plans and gaps are those of the case that changes most.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from mixed import CASES, Case

from shardwright import load_cluster, load_model, make_job
from shardwright.search.planner import plan

CHOSEN = ("two-64", "three-64", "three-128", "large-512", "autohet-13b")
KNOBS = {
    "branch_and_bound.fastest": ("HELPS", "FAR", "CLOSER", "CLOSE", "FINEST"),
    "branch_and_bound.scouting": ("SCOUTED", "LESS_GOOD"),
    "branch_and_bound.run": ("FEW_UNITS", "MUCH_SLOWER"),
    "heuristics.attempts": ("ROUNDS", "IDLE", "ENOUGH", "SOME", "TIGHTENED", "SOLVED", "MANY", "WIDEST"),
    "heuristics.simple_plans": ("EQUAL_PLANS",),
    "master.regions": ("PRECISION", "NARROW", "FEW"),
    "master.column_pool": ("FIRST", "MORE", "LOOKS"),
    "master.program": ("MOST_INTEGER", "NODES"),
    "subproblem.exact": ("MOST_WORK", "MOST_SPLITS"),
    "bounds.capacity": ("FINENESS",),
    "bounds.instance": ("SHORT",),
    "tables.compositions": ("MOST_ORDERED",),
    "drafts.splits": ("TRIED", "WIDEST", "POINTS", "FEW"),
}
FACTORS = {"LESS_GOOD", "FAR", "MUCH_SLOWER", "WIDEST", "NARROW"}
PAGE = """# The knobs of the mixed search

Written by `benchmarks/knobs.py --markdown`: what half and twice of each knob does, in the one of {count} searches that
changes most, to the seconds of an iteration of the plan found and to the gap that is proven. A factor is halved and
doubled in what it has beyond one; "=" is no difference. The knobs are set by hand, and none is fitted to a problem.

| knob | value | half: plan | gap | twice: plan | gap |
|---|--:|--:|--:|--:|--:|
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What the cases gave: seconds of an iteration, and gaps."""

    steps: tuple[float, ...]
    gaps: tuple[float, ...]


def main(markdown: str | None) -> None:
    """Print a row for every knob, and write them as a page if asked for."""
    cases = [case for case in CASES if case.name in CHOSEN]
    usual, rows = searched(cases), []
    for place, names in KNOBS.items():
        module = importlib.import_module(f"shardwright.search.mixed.{place}")
        for name in names:
            found = [searched_with(cases, module, name, value) for value in half_and_twice(module, name)]
            cells = [cell for result in found for cell in compared(result, usual)]
            rows.append(f"| `{place}.{name}` | {getattr(module, name):g} | " + " | ".join(cells) + " |\n")
            print(rows[-1], end="", flush=True)
    if markdown is not None:
        Path(markdown).write_text(PAGE.format(count=len(cases)) + "".join(rows))


def half_and_twice(module: ModuleType, name: str) -> Iterator[float]:
    """Yield half and twice of a knob."""
    value = getattr(module, name)
    for factor in (0.5, 2.0):
        if name in FACTORS:
            yield 1.0 + factor * (value - 1.0)
        else:
            yield max(int(factor * value), 1) if isinstance(value, int) else factor * value


def searched_with(cases: list[Case], module: ModuleType, name: str, value: float) -> Result:
    """Return what the cases give with a knob at another value."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        return searched(cases)
    finally:
        setattr(module, name, before)


def searched(cases: list[Case]) -> Result:
    """Return what the cases give."""
    steps, gaps = [], []
    for case in cases:
        job = make_job(global_batch=case.global_batch, seq_len=case.seq_len, precision=case.precision)  # type: ignore[arg-type]
        ranking = plan(load_model(case.model), load_cluster(case.cluster), job, top=1, gap=case.gap)
        steps.append(ranking.best.iteration_seconds)
        gaps.append(ranking.search.gap or 0.0)
    return Result(tuple(steps), tuple(gaps))


def compared(found: Result, usual: Result) -> Iterator[str]:
    """Yield how much slower a plan is, and how much wider a gap."""
    steps = [one / other - 1.0 for one, other in zip(found.steps, usual.steps, strict=True)]
    gaps = [one - other for one, other in zip(found.gaps, usual.gaps, strict=True)]
    for value in (max(steps, key=abs), max(gaps, key=abs)):
        yield f"{value:+.2%}" if round(abs(value), 4) else "="


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown")
    main(parser.parse_args().markdown)
