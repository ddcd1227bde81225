"""What a calibration on runs of a site is worth: every source of published runs with at least 12 configurations stands
for a site, of which 0, 1, 3 or 10 runs are known, and the others are predicted.

    python -m benchmarks.calibration                      # constants that have not seen the source: some minutes
    python -m benchmarks.calibration --shipped            # the constants that ship, which were fitted to it too
    python -m benchmarks.calibration --measured FOLDER    # more runs: runs.csv and others in the same columns
    python -m benchmarks.calibration --page docs/how-to-calibrate.md

Runs are drawn at random, `DRAWS` times, and predictions are as `shardwright plan --calibration` makes them: twins count
once, and what stalls or is beyond 2.4 times its prediction is neither calibrated on nor judged, but counted apart.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tools.refit.crossvalidate import unseen_source_seconds
from tools.refit.training import timed_cases

from shardwright.arrays import Floats, Ints
from shardwright.cost.calibrate import FARTHEST
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.cost.site.calibration import SiteCalibration, SiteRun, effect_of
from shardwright.cost.site.setting import setting_of
from shardwright.validation.case import Case
from shardwright.validation.outcome import plans_of
from shardwright.validation.runs import PublishedRun, published_runs, read_runs

COUNTS = (0, 1, 3, 10)
FEWEST, MOST = 12, 200  # configurations of a source
DRAWS, SEED = 12, 7
BEGIN, END = "<!-- table: python -m benchmarks.calibration --page -->", "<!-- end of the table -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The healthy runs of a source, the logarithms of the ends of their intervals before calibration, [N, 2], and how
    many runs were left out as stalled."""

    name: str
    runs: tuple[SiteRun, ...]
    ends: Floats
    stalled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Median error of a site's other runs, the part of them inside their interval, and its high over its low, by the
    number of runs known, [COUNTS]."""

    error: Floats
    coverage: Floats
    width: Floats


def main() -> None:
    arguments = _arguments()
    runs: tuple[PublishedRun, ...] = published_runs()
    for file in sorted(arguments.measured.glob("*.csv")) if arguments.measured else ():
        if "failed" not in file.name:
            runs += read_runs(file)
    sites = sites_of(_distinct(timed_cases(runs)), shipped=arguments.shipped)
    text = "\n".join(table(sites, [score_of(site) for site in sites]))
    print(text)
    if arguments.page is not None:
        page = arguments.page.read_text(encoding="utf-8")
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        arguments.page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shipped", action="store_true", help="by the constants that ship, which have seen all sources"
    )
    parser.add_argument("--measured", type=Path, help="a folder with more tables of runs")
    parser.add_argument("--page", type=Path, help="write the table into this page too, between its marks")
    return parser.parse_args()


def _distinct(cases: Sequence[Case]) -> list[Case]:
    """Return cases without those that two tables have, and of large sources as many as fit, evenly."""
    known = list({(case.run.source, case.run.row_id): case for case in cases}.values())
    count = Counter(case.run.source for case in known)
    seen: Counter[str] = Counter()
    kept = []
    for case in known:
        source = case.run.source
        seen[source] += 1
        every = -(-count[source] // MOST)
        if seen[source] % every == 0:
            kept.append(case)
    return kept


def sites_of(cases: Sequence[Case], *, shipped: bool) -> list[Site]:
    """Return the sources with enough configurations as sites."""
    efficiency = default_efficiency()
    unseen = None if shipped else unseen_source_seconds(cases, efficiency)
    by_source: dict[str, list[tuple[SiteRun, tuple[float, float]]]] = {}
    for place, (case, plan) in enumerate(zip(cases, plans_of(cases, efficiency), strict=True)):
        prediction = predict(plan, efficiency)
        seconds = prediction.iteration_seconds
        row = SiteRun(
            setting=setting_of(plan, prediction.time),
            measured_seconds=case.run.seconds or math.nan,
            predicted_seconds=seconds if unseen is None else float(unseen[place]),
            model=case.model.name,
        )
        low, high = prediction.interval
        ends = math.log(low / seconds), math.log(high / seconds)
        by_source.setdefault(case.run.source, []).append((row, ends))
    sites = []
    for name, rows in by_source.items():
        single = list({(row.setting, row.model): (row, ends) for row, ends in rows}.values())
        healthy = [(row, ends) for row, ends in single if abs(row.log_ratio) < math.log(FARTHEST)]
        if len(single) >= FEWEST and len(healthy) > max(COUNTS):
            chosen, ends = zip(*healthy, strict=True)
            stalled = len(single) - len(healthy)
            sites.append(Site(name=name, runs=chosen, ends=np.array(ends), stalled=stalled))
    return sites


def score_of(site: Site) -> Score:
    """Return how well some runs of a site predict the others."""
    chance, rows = np.random.default_rng(SEED), []
    for count in COUNTS:
        drawn = [_drawn(site, chance.permutation(len(site.runs))[:count]) for _ in range(DRAWS if count else 1)]
        rows.append(np.mean(drawn, axis=0))
    error, coverage, width = np.array(rows).T
    return Score(error=error, coverage=coverage, width=width)


def _drawn(site: Site, known: Ints) -> tuple[float, float, float]:
    calibration = SiteCalibration(runs=tuple(site.runs[place] for place in known))
    rest = [place for place in range(len(site.runs)) if place not in set(known.tolist())]
    effects = [effect_of(calibration, site.runs[place].setting) for place in rest]
    off = np.array([site.runs[place].log_ratio for place in rest]) - np.log([effect.factor for effect in effects])
    ends = site.ends[rest] * np.array([effect.narrower for effect in effects])[:, None]
    inside = (ends[:, 0] <= off) & (off <= ends[:, 1])
    error = float(np.median(np.abs(np.expm1(-off))))
    return error, float(inside.mean()), float(np.median(np.exp(ends[:, 1] - ends[:, 0])))


def table(sites: Sequence[Site], scores: Sequence[Score]) -> list[str]:
    """Return a Markdown table of the scores, their means and what they gain."""
    heads = [f"{count} runs" for count in COUNTS]
    lines = [" | ".join(["| source", "configurations", "stalled", *heads, "inside 80 % interval |"])]
    lines.append("|---|--:|--:|" + "--:|" * (len(COUNTS) + 1))
    for site, score in zip(sites, scores, strict=True):
        cells = [site.name, str(len(site.runs)), str(site.stalled), *(f"{value:.1%}" for value in score.error)]
        lines.append("| " + " | ".join([*cells, " / ".join(f"{value:.0%}" for value in score.coverage)]) + " |")
    error = np.mean([score.error for score in scores], axis=0)
    coverage = np.mean([score.coverage for score in scores], axis=0)
    width = np.median([score.width for score in scores], axis=0)
    cells = ["**mean of sources**", "", "", *(f"**{value:.1%}**" for value in error)]
    lines.append("| " + " | ".join([*cells, " / ".join(f"{value:.0%}" for value in coverage)]) + " |")
    gains = ", ".join(
        f"{1.0 - value / error[0]:.0%} after {count}" for count, value in zip(COUNTS[1:], error[1:], strict=True)
    )
    worse = [
        int(sum(score.error[place] > 1.02 * score.error[0] for score in scores)) for place in range(1, len(COUNTS))
    ]
    lines += ["", f"Lower by {gains}; higher (by more than 2 % of itself) at {', '.join(map(str, worse))} of"]
    lines[-1] += (
        f" {len(sites)} sources. High over low of the interval: {', '.join(f'{value:.2f}' for value in width)}."
    )
    return lines


if __name__ == "__main__":
    main()
