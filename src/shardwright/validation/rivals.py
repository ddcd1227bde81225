"""Two simple ways to predict an iteration, to see what the cost model is worth on the same runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Floats
from shardwright.validation.case import Case, ideal_seconds

ROOFLINE_EFFICIENCY = 0.5  # of the dense peak


def constant_mfu_seconds(cases: Sequence[Case], seconds: Floats) -> Floats:
    """Return the seconds of each case at one constant MFU, [N]: the median, over all *other* sources, of the median MFU
    of their runs, so that a source says nothing about itself. Not a number with a single source. `seconds` are the
    measured ones."""
    ideal = np.array([ideal_seconds(case) for case in cases])
    sources = np.array([case.run.source for case in cases])
    names = np.unique(sources)
    medians = np.array([np.median((ideal / seconds)[sources == name]) for name in names])
    alone = len(names) == 1
    elsewhere = {name: np.nan if alone else float(np.median(medians[names != name])) for name in names}
    return np.asarray(ideal / np.array([elsewhere[name] for name in sources]))


def roofline_seconds(cases: Sequence[Case], recompute: Sequence[str]) -> Floats:
    """Return the seconds of each case if every GPU computed at half of its dense peak, full recomputation and the
    bubble of the pipeline included, communication not, [N]. A pipeline of p stages, v virtual ones each, idles
    (p - 1) / (v m) of the time of its m micro-batches (D. Narayanan et al., SC21, section 2.2)."""
    ideal = np.array([ideal_seconds(case) for case in cases])
    again = np.where(np.array(recompute) == "full", 4.0 / 3.0, 1.0)
    bubble = np.array([1.0 + _bubble(case) for case in cases])
    return np.asarray(ideal * again * bubble / ROOFLINE_EFFICIENCY)


def _bubble(case: Case) -> float:
    row = case.row
    if case.plan is not None:
        return max((len(replica.stages) - 1.0) / replica.micro_batches for replica in case.plan.replicas)
    micro_batches = case.job.global_batch / (row["dp"] * row["micro_batch"])
    return float((row["pp"] - 1.0) / (row["vpp"] * micro_batches))
