"""How long shopping takes: the whole front over six GPU types of up to 1,024 each, with every point checked.

.venv/bin/python benchmarks/shop.py
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise

from shardwright import load_model, make_job, predict
from shardwright.search.market.result import Shopping
from shardwright.search.market.shop import shop
from shardwright.search.renting import choice_of
from shardwright.spec.catalog.prices import prices
from shardwright.spec.read.offers import narrowed, offers_from_prices

RUNS = 5
GPUS = ("A100-SXM-40", "A100-SXM-80", "H100-SXM", "H200", "B200", "L40S")


@dataclass(frozen=True, slots=True)
class Case:
    """One question; `limit_seconds` is what it is meant to take at most, 0 for none."""

    name: str
    model: str
    markets: tuple[str, ...]
    limit_seconds: float


CASES = (
    Case("six types on demand", "llama-2-70b", ("on-demand",), 5.0),
    Case("six types on demand and spot", "llama-2-70b", (), 0.0),
    Case("a model of 8 B parameters", "llama-3.1-8b", ("on-demand",), 0.0),
)


def main() -> None:
    """Print a table for every case."""
    for case in CASES:
        report(case)
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def report(case: Case) -> None:
    """Run one case, check its front and print its figures."""
    model, job = load_model(case.model), make_job(global_batch=1024, seq_len=4096, tokens="1T")
    offers = narrowed(offers_from_prices(prices(), gpus=GPUS), (), case.markets)
    wall, busy = [], []
    for _ in range(RUNS):
        begin = time.process_time()
        result = shop(model, offers, job, mixes=0)
        busy.append(time.process_time() - begin)
        wall.append(result.report.seconds)
    limit = f" (aim {case.limit_seconds:g} s)" if case.limit_seconds else ""
    print(f"{case.name}: {case.model}, {len(offers.offers)} offers, {result.report.counts:,} numbers of machines")
    print(f"  {statistics.median(wall):.2f} s{limit}, {statistics.median(busy):.2f} s of processor time")
    print(f"  {result.report.layouts:,} layouts, {result.report.costed:,} plans simulated")
    print(f"  {len(result.front)} choices on the front, {checked(result)}")
    for choice in result.front:
        rented = " + ".join(f"{rental.gpus:>5} {rental.offer.name}" for rental in choice.rentals)
        print(f"    {choice.hours / 24:9.2f} days {choice.dollars:12,.0f} $ {choice.preemptions:8,.1f}  {rented}")


def checked(result: Shopping) -> str:
    """Return how far the points are from their plans predicted alone, and whether the front is strictly monotone."""
    worst = 0.0
    for choice in result.front:
        alone = choice_of(predict(replace(choice.plan, prediction=None)), choice.rentals, result.offers.terms)
        worst = max(worst, abs(alone.hours / choice.hours - 1.0), abs(alone.dollars / choice.dollars - 1.0))
    strict = all(
        faster.hours < slower.hours and (slower.dollars < faster.dollars or slower.preemptions < faster.preemptions)
        for faster, slower in pairwise(result.front)
    )
    return f"off by at most {worst:.1e} from its plan alone, {'strictly' if strict else 'NOT'} monotone"


if __name__ == "__main__":
    main()
