"""`python -m tools.refit rare`: what of strategies hardly any published run has, or none of a kind of model on an
architecture (`cost.trust.rarity`)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import shardwright.cost.trust
from shardwright.commands import option
from shardwright.cost.trust.rarity import TYPES, UNREPORTED
from shardwright.spec.model import training_kind
from shardwright.validation.case import Case

TABLE = Path(shardwright.cost.trust.__file__).parent / "data" / "rare_switches.csv"
MOST = 1e9  # numeric: no value is above it
FEW_RUNS = (
    20  # of a kind of model on an architecture, of which it says nothing that none has a switch; chosen, 10 to 50
)
RARE_RUNS = 30  # of all that have a switch, at most, for it to be rare everywhere; chosen, 20 to 150


@dataclass(frozen=True)
class Switch:
    """Values of an axis of strategies that may be rare; `among` are those that a run has that could have them."""

    name: str
    axis: str
    least: float
    most: float = MOST
    among: float = 0.0


# Sequence parallelism is none of them: it moves the same bytes as tensor parallelism without it.
SWITCHES = (
    Switch("optimizer offload", "offload", 1e-9, 1.0),
    Switch("ZeRO-2", "sharding", 2, 2),
    Switch("more than 12 virtual stages", "vpp", 13, among=2),
    Switch("zero bubble", "zero_bubble", 1, 1),
    Switch("tensor-parallel overlap", "overlap_tp", 1, 1),
    Switch("context parallelism", "cp", 2),
    Switch("micro-batches above 4", "micro_batch", 5),
    Switch("no expert parallelism", "ep", 1, 1),
)


def rare(
    out: Annotated[
        Path | None,
        option("--out", "-o", metavar="DIR", help="Where to write; default: the data of this package."),
    ] = None,
) -> None:
    """Count what of strategies hardly any published run has, or none of a kind of model on an architecture."""
    from tools.refit.training import timed_cases

    from shardwright.files import write_atomically
    from shardwright.validation.runs import published_runs

    rows = list(rows_of(timed_cases(published_runs())))
    table = io.StringIO()
    writer = csv.DictWriter(table, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path = (TABLE if out is None else out / TABLE.name).resolve()
    write_atomically(path, table.getvalue().encode())
    print(path)


def rows_of(cases: Iterable[Case]) -> Iterator[dict[str, str]]:
    """Yield the rows of `rare_switches.csv`."""
    strategies: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    mixed = every = 0
    for case in cases:
        every += 1
        if case.plan is not None:
            mixed += 1
            continue
        kind = training_kind(case.model, adapters=bool(case.job.adapters))
        strategies.setdefault((case.pool.gpu.architecture, kind), []).append(case.row)
    everywhere = [row for rows in strategies.values() for row in rows]
    rare = [switch for switch in SWITCHES if _having(everywhere, switch) <= RARE_RUNS]
    for switch in rare:
        able = sum(row[switch.axis] >= switch.among for row in everywhere) if switch.among else every
        yield _row(switch, _having(everywhere, switch), able)
    yield _row(Switch("several GPU types", TYPES, 2), mixed, every)
    yield _row(Switch("unreported GPU types", UNREPORTED, 1), 0, every)
    for place, rows in sorted(strategies.items()):
        for switch in SWITCHES:
            if switch not in rare and len(rows) >= FEW_RUNS and not _having(rows, switch):
                yield _row(switch, 0, len(rows), *place)


def _having(rows: Iterable[Mapping[str, float]], switch: Switch) -> int:
    return sum(switch.least <= row[switch.axis] <= switch.most for row in rows)


def _row(switch: Switch, runs: int, of: int, architecture: str = "", model_kind: str = "") -> dict[str, str]:
    return {
        "name": switch.name,
        "axis": switch.axis,
        "least": f"{switch.least:g}",
        "most": f"{switch.most:g}",
        "runs": str(runs),
        "of": str(of),
        "architecture": architecture,
        "model_kind": model_kind,
        "source": "`python -m tools.refit rare`: runs in `validation/data/published.csv.gz`",
        "date": "2026",
    }
