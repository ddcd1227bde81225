"""Numbers of machines of each type that a plan may occupy: what a second of its iteration costs on them, and how long
the iteration may take within deadline and budget.

A machine with GPUs of several types is paid as a whole, whichever of them a plan uses: with n_g machines whose GPUs of
type g it has, the largest n_g of a machine's types are paid. Programs, which are linear, take parts of the price that
add up to it: no more than what is paid, and as much where all GPUs are in use.

A box holds all numbers between two corners. The least price and the fewest interruptions of its plans are those of the
lower corner, the best of everything else is that of the upper one, so a bound on a box is one on all that is in it, and
a box of a single number of machines is charged exactly: whole machines, and what interruptions add where they can be
taken back. Traffic between sites is left out, which only adds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Columns, Floats, Ints
from shardwright.cost.context import Context
from shardwright.cost.money import Exposure, stretch, together
from shardwright.records import record
from shardwright.rounding import weighed
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.offers import Terms, preemptions_per_hour
from shardwright.units import SECONDS_PER_HOUR

FREE = 1e-9  # dollars an hour of a machine that costs nothing, so that its time counts
MOST_BOXES = 1_000  # to start with
RATIOS = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)  # of the corners of a box, for each type


@record
class Bill:
    """What counts for the value of a plan: the job's objective and limits; for each type [G] how many machines have
    it, of which `kind` they are, and what a second of one costs at least, its `part` of the dollars; and for each kind
    of machine [M] its GPUs, the dollars for a second of one, and how often one is taken back an hour."""

    model: Model
    job: Job
    machines: Ints
    kind: Ints
    part: Floats
    gpus: Ints
    dollars: Floats
    preemptions: Floats

    def of_kinds(self, machines: Ints) -> Ints:
        """Return the machines of each kind, [K, M], that have so many with GPUs of each type, [K, G]."""
        columns = [machines[:, self.kind == number].max(axis=1) for number in range(len(self.gpus))]
        return np.stack(columns, axis=1)

    def per_second(self, machines: Ints) -> Floats:
        """Return the dollars for a second of so many machines, [K]."""
        return weighed(self.of_kinds(machines), self.dollars)


@record
class Boxes(Columns):
    """From `low` to `high` machines of each type, [K, G]. A second of an iteration adds `slope` [K] or more to what is
    minimised; no iteration of more than `longest` [K] seconds keeps the limits."""

    low: Ints
    high: Ints
    slope: Floats
    longest: Floats


def bill_of(contexts: Sequence[Context]) -> Bill:
    """Return the bill of a job on the pools of `contexts`, all of which have a price."""
    pools, job = [context.pool for context in contexts], contexts[0].job
    kinds = list({pool.machines: pool for pool in pools}.values())
    prices = [pool.dollars_per_node_hour for pool in kinds if pool.dollars_per_node_hour is not None]
    assert len(prices) == len(kinds), "the search of each type alone has asked for its price"
    dollars = np.maximum(prices, FREE) / SECONDS_PER_HOUR
    kind = np.array([[pool.machines for pool in kinds].index(pool.machines) for pool in pools])
    work = np.array([pool.gpus_per_node * (pool.gpu.peak(job.precision) or 1.0) for pool in pools])
    return Bill(
        model=contexts[0].model,
        job=job,
        machines=np.array([pool.nodes for pool in pools]),
        kind=kind,
        part=dollars[kind] * work / np.bincount(kind, work)[kind],
        gpus=np.array([pool.gpus_of_machine for pool in kinds]),
        dollars=dollars,
        preemptions=np.array([preemptions_per_hour(pool) for pool in kinds]),
    )


def all_boxes(bill: Bill) -> Boxes:
    """Return boxes that together hold all numbers of machines: of one number each where these are not too many."""
    for ratio in RATIOS:
        levels = [_levels(int(count), ratio) for count in bill.machines]
        if np.prod([len(level) for level in levels]) <= MOST_BOXES:
            break
    corners = np.array(np.meshgrid(*[np.arange(len(level)) for level in levels], indexing="ij"))
    places = corners.reshape(len(levels), -1).T[1:]
    ends = [level[places[:, kind]] for kind, level in enumerate(levels)]
    return boxes(bill, np.stack([end[:, 0] for end in ends], axis=1), np.stack([end[:, 1] for end in ends], axis=1))


def boxes(bill: Bill, low: Ints, high: Ints) -> Boxes:
    """Return the boxes from `low` to `high` [K, G]. Where a type has none at `low` it has none at `high`."""
    job, dollars, longer = bill.job, bill.per_second(low), _longer(bill, low, high)
    longest = np.full(len(low), np.inf)
    if job.iterations is not None and job.deadline_hours is not None:
        longest = np.minimum(longest, job.deadline_hours * SECONDS_PER_HOUR / job.iterations / longer)
    if job.iterations is not None and job.budget_dollars is not None:
        longest = np.minimum(longest, job.budget_dollars / job.iterations / dollars / longer)
    slope = np.ones(len(low)) if job.objective == "time" else dollars * longer
    return Boxes(low=low, high=high, slope=slope, longest=longest)


def _levels(count: int, ratio: float) -> Ints:
    """Return from how many to how many machines, [N, 2], of 0 to `count`: 0 stands alone."""
    levels, low = [(0, 0)], 1
    while low <= count:
        high = min(max(int(low * ratio), low), count)
        levels.append((low, high))
        low = high + 1
    return np.array(levels)


def _longer(bill: Bill, low: Ints, high: Ints) -> Floats:
    """Return by what interruptions lengthen a run on the machines of a box, at least, [K]."""
    if bill.job.tokens is None:
        return np.ones(len(low))
    few, many = (
        together(bill.model, bill.job, Terms(), bill.of_kinds(machines), bill.gpus, bill.preemptions)
        for machines in (low, high)
    )
    least = Exposure(
        interruptions_per_hour=few.interruptions_per_hour,
        checkpoint_seconds=many.checkpoint_seconds,
        recovery_seconds=many.recovery_seconds,
    )
    return stretch(least).factor
