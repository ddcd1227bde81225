"""`shardwright.validate`: runs predicted against what was measured of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned import default_efficiency
from shardwright.errors import Problem, bad, reject, suggestion
from shardwright.records import record
from shardwright.validation.case import CONTRADICTS
from shardwright.validation.outcome import Outcome, outcomes
from shardwright.validation.runs import PublishedRun, published_failed_runs, published_runs, read_runs
from shardwright.validation.summary import Summary, summarise

QUALITIES = "ABC"
PUBLISHED = "The published runs that ship with Shardwright"


@record
class Validation:
    """The outcome of every run, failed ones last, and the summary. `name` says where the runs are from."""

    name: str
    outcomes: tuple[Outcome, ...]
    summary: Summary


def validate(
    runs: Path | str | Sequence[PublishedRun] | None = None,
    *,
    failed: Path | str | Sequence[PublishedRun] | None = None,
    quality: str = "",
    kinds: Collection[str] = (),
    rows: Collection[str] = (),
    efficiency: Efficiency | None = None,
) -> Validation:
    """Return the validation of `runs`, a file of them or themselves; without, that of the published runs that ship with
    the package. `failed` are runs known not to fit in memory.

    `quality` (letters, e.g. "AB") and `kinds` choose among runs that have one, `rows` are the row_ids of runs to take
    alone. Raises SpecError for a file that cannot be used, for a row_id that no run has, and for runs that contradict
    themselves (`said.contradictions`), naming each; a run that cannot be predicted is no error but an outcome with a
    reason.
    """
    unknown = sorted(set(quality) - set(QUALITIES))
    if unknown:
        raise bad(f"quality {quality}", f"there is no {', '.join(unknown)}", "give some of the letters A, B and C")
    if runs is None:
        name, ran = PUBLISHED, published_runs()
        failed = published_failed_runs() if failed is None else failed
    else:
        name, ran = str(runs) if isinstance(runs, Path | str) else f"{len(runs)} runs", _read(runs)
    failing = () if failed is None else _read(failed)
    there = {run.kind for run in (*ran, *failing)}
    if missing := sorted(set(kinds) - there):
        raise bad(f"kind {missing[0]}", "is that of no run", suggestion(missing[0], there))
    if rows:
        known = {run.row_id for run in (*ran, *failing)}
        if missing := sorted(set(rows) - known):
            raise bad(f"row {missing[0]}", "is the row_id of no run", suggestion(missing[0], known))
        ran, failing = (tuple(run for run in table if run.row_id in rows) for table in (ran, failing))
    model = default_efficiency() if efficiency is None else efficiency
    compared = outcomes(ran, model, quality=quality, kinds=kinds)
    compared += outcomes(failing, model, failed=True, quality=quality, kinds=kinds)
    reject(
        Problem(f"run {outcome.run.row_id}", outcome.skipped.words, "mend the row, or give it quality C")
        for outcome in compared
        if outcome.skipped is not None and outcome.skipped.kind == CONTRADICTS
    )
    return Validation(name=name, outcomes=compared, summary=summarise(compared))


def _read(runs: Path | str | Sequence[PublishedRun]) -> tuple[PublishedRun, ...]:
    return read_runs(Path(runs)) if isinstance(runs, Path | str) else tuple(runs)
