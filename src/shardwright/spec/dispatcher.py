"""Which dispatcher sends tokens to their experts: the answer for prices, exports and imports alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from shardwright.spec.catalog.frameworks import framework_rows
from shardwright.spec.cluster import Gpu
from shardwright.spec.job import Job
from shardwright.spec.options import Dispatcher

# Compute capabilities that DeepEP and HybridEP are built for, from one on and below another (README of DeepEP).
FLEX = (8.0, 11.0)


def dispatcher_of(job: Job, gpus: Iterable[Gpu]) -> Dispatcher:
    """Return the dispatcher of a job on `gpus`: the one that it says, else its framework's own. In place of a `flex`
    that nobody asked for, GPUs that it does not run on get the all-to-all."""
    if job.options.dispatcher is not None:
        return job.options.dispatcher
    usual = cast("Dispatcher", framework_rows()[job.framework]["dispatcher"])
    return usual if usual != "flex" or flex_runs(gpus) else "alltoall"


def flex_runs(gpus: Iterable[Gpu]) -> bool:
    """Return whether DeepEP or HybridEP runs on all of `gpus`."""
    return all(gpu.vendor == "nvidia" and FLEX[0] <= gpu.capability < FLEX[1] for gpu in gpus)
