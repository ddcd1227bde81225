"""The one exception that bad input raises, and the list of problems that it carries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SURE_SLIP, SLIP, NEAR = 0.9, 0.75, 0.5  # likeness (`difflib.SequenceMatcher.ratio`) of names; chosen
LAST_INDEX = re.compile(r"\[(\d+)\](?!.*\[\d+\])")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the input.

    `path` names the place (`cluster.yaml: nodes[0].gpu`), `message` says what is wrong there, `hint` says how to
    mend it. An argument of a call is named as it is given, in backquotes with an equals sign (`fit=0.8`): the command
    line makes its flag of it (`reports.words.flagged`).
    """

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        remedy = f" ({self.hint})" if self.hint else ""
        return f"{self.wrong}{remedy}"

    @property
    def wrong(self) -> str:
        """What is wrong and where, without the remedy."""
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(ValueError):
    """The user's input cannot be used. The command line prints its problems and exits with status 2."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


def bad(path: str, message: str, hint: str = "") -> SpecError:
    """Return the error for a single problem."""
    return SpecError(Problem(path, message, hint))


def reject(problems: Iterable[Problem]) -> None:
    """Raise SpecError with all that is wrong, where anything is."""
    if wrong := tuple(problems):
        raise SpecError(*wrong)


def slip_of(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that `word` surely is but for a slip, None where it may be a name of its own."""
    return next(iter(_near(word, sorted(known), 1, SURE_SLIP)), None)


def suggestion(word: str, known: Iterable[str], *, limit: int = 3) -> str:
    """Return "did you mean A or B?" for the known names that are `word` but for a slip, else for the longest that it
    begins with and those that begin so, else for the nearest, or a list of the first few names."""
    names, wanted = sorted(known), word.casefold()
    by_folded = {name.casefold(): name for name in names}
    stem = max((folded for folded in by_folded if wanted.startswith(folded)), key=len, default="")
    near = _near(wanted, by_folded, limit, SLIP)
    near = near or sorted((folded for folded in by_folded if stem and folded.startswith(stem)), key=len)
    near = near or _near(wanted, by_folded, limit, NEAR)
    near += [folded for folded in by_folded if wanted and wanted in folded and folded not in near]
    if near:
        return "did you mean " + " or ".join(by_folded[folded] for folded in near[:limit]) + "?"
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f"known: {shown}"


def _near(word: str, known: Iterable[str], limit: int, likeness: float) -> list[str]:
    """Return the known names that are most like a word, best first."""
    from difflib import get_close_matches  # a run without errors needs none

    return get_close_matches(word, list(known), n=limit, cutoff=likeness)


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
