"""Long lists of problems, made short."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardwright.errors import Problem

LAST_INDEX = re.compile(r"\[(\d+)\](?!.*\[\d+\])")


def merged(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems with those as one that differ in the last index of their place alone:
    `stages[0].gpu` and `stages[1].gpu` become `stages[0–1].gpu`."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for problem in problems:
        index = LAST_INDEX.search(problem.path)
        place = LAST_INDEX.sub("[#]", problem.path)
        groups.setdefault((place, problem.message, problem.hint), []).extend([int(index[1])] if index else [])
    return tuple(
        Problem(place.replace("[#]", f"[{_ranges(indices)}]") if indices else place, message, hint)
        for (place, message, hint), indices in groups.items()
    )


def _ranges(indices: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and runs[-1][-1] == index - 1:
            runs[-1] = [runs[-1][0], index]
        else:
            runs.append([index])
    return ", ".join("–".join(map(str, run)) for run in runs)
