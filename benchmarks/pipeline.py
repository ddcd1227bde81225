"""Speed of the pipeline simulator and bounds, and the error of the formula that planners usually take instead.

Run: python benchmarks/pipeline.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.pipeline.bound import interleaved_lower_bound, lower_bound
from shardwright.cost.pipeline.schedule import interleaved, one_f_one_b
from shardwright.cost.pipeline.simulate import simulate

Times = tuple[Floats, Floats, Floats]

SHAPES = ((8, 1, 64, 16), (16, 1, 512, 16), (64, 1, 2048, 4), (8, 2, 128, 16), (16, 2, 512, 16), (64, 4, 2048, 4))
# Name, spread of stage times (the slowest takes 1 + spread of the fastest at most), one-way transfer in forwards.
STAGES = (("equal", 0.0, 0.0), ("equal, slow links", 0.0, 0.3), ("5 % apart", 0.05, 0.02), ("4:1", 3.0, 0.0),
          ("4:1, slow links", 3.0, 0.3))  # fmt: skip
FORMULA_SHAPES = ((4, 8), (4, 32), (8, 16), (8, 64))


def random_times(rng: np.random.Generator, candidates: int, stages: int, spread: float, transfer: float) -> Times:
    forward = 1.0 + spread * rng.random((candidates, stages))
    return forward, 2 * forward, transfer * rng.random((candidates, stages - 1))


def best_seconds(run: Callable[[], object], repetitions: int = 7) -> float:
    seconds = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def usual_formula(times: Times, micro_batches: int) -> Floats:
    """sum_i (t_i + 2 c_i) + (K - 1) max_i (t_i + 2 c_i), with c the transfer to the next stage, there and back."""
    forward, backward, transfer = times
    stage = forward + backward + 2 * np.pad(transfer, ((0, 0), (0, 1)))
    return np.asarray(stage.sum(axis=1) + (micro_batches - 1) * stage.max(axis=1))


def bound_of(times: Times, ranks: int, virtual: int, micro_batches: int) -> Floats:
    forward, backward, transfer = times
    if virtual == 1:
        return lower_bound(forward, backward, transfer, micro_batches)
    return interleaved_lower_bound(forward, backward, ranks, micro_batches, transfer)


def print_speed(rng: np.random.Generator) -> None:
    print("  P  v     K   N  stages               simulate    no skip      bound  bound gap")
    for ranks, virtual, micro_batches, candidates in SHAPES:
        for name, spread, transfer in STAGES:
            times = random_times(rng, candidates, ranks * virtual, spread, transfer)
            order = interleaved(ranks, virtual, micro_batches)
            simulating = best_seconds(partial(simulate, order, *times))
            unskipped = best_seconds(partial(simulate, order.expanded(), *times), 2)
            bounding = best_seconds(partial(bound_of, times, ranks, virtual, micro_batches))
            seconds = simulating, unskipped, bounding
            exact = simulate(order, *times).makespan_seconds
            columns = " ".join(f"{1e3 * s:7.2f} ms" for s in seconds)
            gap = (1 - bound_of(times, ranks, virtual, micro_batches) / exact).max()
            print(f"{ranks:3} {virtual:2} {micro_batches:5} {candidates:3}  {name:18} {columns} {gap:9.2%}")


def print_errors(rng: np.random.Generator, samples: int = 2000) -> None:
    print(f"\nerror against the exact time of 1F1B, {samples} random pipelines a row, stages up to 4:1, b = 2f")
    print(f"{'P':>3} {'K':>4} {'transfers':12} {'sum + (K - 1) max':>34}   {'lower bound':>20}")
    for ranks, micro_batches in FORMULA_SHAPES:
        for name, transfer in (("none", 0.0), ("overlapped", 0.5)):
            times = random_times(rng, samples, ranks, 3.0, transfer)
            exact = simulate(one_f_one_b(ranks, micro_batches), *times).makespan_seconds
            usual = usual_formula(times, micro_batches) / exact - 1
            bound = lower_bound(*times, micro_batches) / exact - 1
            print(
                f"{ranks:3} {micro_batches:4} {name:12} mean {usual.mean():+6.1%} least {usual.min():+6.1%} "
                f"most {usual.max():+6.1%}   mean {bound.mean():+6.2%} least {bound.min():+6.1%}"
            )


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    print_speed(generator)
    print_errors(generator)
