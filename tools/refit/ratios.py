"""The steps of `cost.trust.interval`: how far measured ratios of two strategies are from predicted ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.commands import option
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.predict import predict
from shardwright.cost.trust.interval import unlikeness
from shardwright.validation.case import Case
from shardwright.validation.outcome import Outcome, plans_of, sweep_of

SHIPPED = Path(__file__).parents[2] / "src/shardwright/cost/trust/data/ratios.csv"
EDGES = (0.0, 0.3, 0.6)  # from which plans are more unlike; chosen, as no source has pairs of all finer steps
MOST_PAIRS = 300  # of one sweep; more say the same again
COUNTED = 30  # pairs of a source beyond which more give it no more weight
INSIDE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs of runs of one sweep: the place of their source, how unlike they are, and the distance of the logarithm of
    the measured ratio of their seconds from that of the predicted one, [N] each."""

    source: Ints
    unlike: Floats
    error: Floats

    @property
    def step(self) -> Ints:
        """The step of each, [N]."""
        return np.asarray(np.searchsorted(EDGES, self.unlike, side="right") - 1)


def parts_of(cases: Sequence[Case], efficiency: Efficiency) -> Floats:
    """Return the seconds of the parts of each case's iteration, [N, T]."""
    return np.array([astuple(predict(plan, efficiency).time) for plan in plans_of(cases, efficiency)])


def pairs_of(cases: Sequence[Case], seconds: Floats, parts: Floats) -> Pairs:
    """Return the pairs of all sweeps; `seconds` [N] are predicted, NaN where a case does not count, `parts` [N, T]
    those of its iteration."""
    sweeps: dict[object, list[int]] = defaultdict(list)
    for place in np.flatnonzero(~np.isnan(seconds)).tolist():
        sweeps[sweep_of(Outcome(run=cases[place].run))].append(place)
    pick, rows = Random(0), list[tuple[int, int]]()
    for places in sweeps.values():
        pairs = list(combinations(places, 2))
        rows += pairs if len(pairs) <= MOST_PAIRS else pick.sample(pairs, MOST_PAIRS)
    first, second = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    measured = np.array([case.run.seconds for case in cases], dtype=float)
    names = sorted({case.run.source for case in cases})
    source = np.array([names.index(case.run.source) for case in cases])
    scaled = parts * (seconds / parts.sum(axis=1))[:, None]
    off = np.log(measured[first] / measured[second]) - np.log(seconds[first] / seconds[second])
    return Pairs(source=source[first], unlike=unlikeness(scaled[first], scaled[second]), error=np.abs(off))


def heights(pairs: Pairs) -> Floats:
    """Return for each step what four of five pairs stay within, never less than for a lower step, [S]; NaN where no
    pair is so unlike. Sources count by the root of their pairs, up to `COUNTED`."""
    count = np.bincount(pairs.source)
    weight = (np.sqrt(np.minimum(count, COUNTED)) / np.maximum(count, 1))[pairs.source]
    within = np.full(len(EDGES), np.nan)
    for step in range(len(EDGES)):
        here = pairs.step == step
        if here.any():
            order = np.argsort(pairs.error[here], kind="stable")
            share = np.cumsum(weight[here][order])
            within[step] = pairs.error[here][order][np.searchsorted(share, INSIDE * share[-1])]
    return np.asarray(np.fmax.accumulate(within))


def coverage(pairs: Pairs) -> tuple[float, float]:
    """Return the share of pairs within steps made without their source, and the mean of high over low there, over
    sources."""
    inside, width = [], []
    for source in np.unique(pairs.source).tolist():
        mine = pairs.source == source
        others = Pairs(source=pairs.source[~mine], unlike=pairs.unlike[~mine], error=pairs.error[~mine])
        half = heights(others)[pairs.step[mine]]
        known = ~np.isnan(half)
        if known.any():
            inside.append(float((pairs.error[mine][known] <= half[known]).mean()))
            width.append(float(np.exp(2.0 * half[known]).mean()))
    return float(np.mean(inside)), float(np.mean(width))


def ratios_csv(pairs: Pairs) -> str:
    """Return the table that ships."""
    lines = ["unlike,log_ratio,pairs,sources"]
    for step, (edge, height) in enumerate(zip(EDGES, heights(pairs).tolist(), strict=True)):
        here = pairs.step == step
        lines.append(f"{edge:g},{height:.3g},{int(here.sum())},{len(np.unique(pairs.source[here]))}")
    return "\n".join(lines) + "\n"


def ratios(
    out: Annotated[
        Path, option("--out", "-o", metavar="FILE", help="Write the steps here; default: as shipped.")
    ] = SHIPPED,
) -> None:
    """Measure how far ratios of two strategies of a published sweep are from those predicted by constants that have not
    seen their source; some minutes."""
    from tools.refit.remembering import Remembering
    from tools.refit.scores import healthy
    from tools.refit.training import judged, timed_cases

    from shardwright.cost.learned import default_efficiency
    from shardwright.files import write_atomically
    from shardwright.validation.runs import published_runs

    efficiency = Remembering(default_efficiency())
    cases = timed_cases(published_runs())
    seconds = np.where(healthy(cases), judged(cases, efficiency)["source left out"][0], np.nan)
    pairs = pairs_of(cases, seconds, parts_of(cases, efficiency))
    write_atomically(out, ratios_csv(pairs).encode())
    inside, width = coverage(pairs)
    print(f"{ratios_csv(pairs)}made without a source they hold {inside:.0%} of its pairs, high / low {width:.2f}")
