"""What is taken where a run does not say something, and what contradicts itself in what it says.

`data/defaults.csv` has what a framework does by default on an architecture, both as patterns that are searched in their
names; the first row that applies counts. Where the row has another value too, the default is in doubt, and the run is
forecast under both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from shardwright.files import shipped_table
from shardwright.units import GIGA
from shardwright.validation.runs import PublishedRun

RATE_SLACK = 0.03  # by which a rate times a time may differ from the tokens of an iteration: both are rounded
MEMORY_SLACK = 1.02  # of GB over GiB and of rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """What is taken of a column, and what else it may have been ("": nothing else)."""

    value: str = ""
    other: str = ""


def said(run: PublishedRun, column: str, architecture: str) -> Default:
    """Return what a run on GPUs of an architecture says in a column, else the default."""
    words = str(getattr(run, column) or "")
    return Default(value=words) if words else _default(run.framework.casefold(), column, architecture)


@cache
def _default(framework: str, column: str, architecture: str) -> Default:
    for row in shipped_table("shardwright.validation", "defaults.csv"):
        names = re.search(row["framework"], framework) and re.search(row["architecture"], architecture)
        if row["column"] == column and names:
            return Default(value=row["value"], other=row["other"])
    return Default()


def contradictions(run: PublishedRun, *, experts: bool, memory_bytes: float, ideal_seconds: float) -> Iterator[str]:
    """Yield what a run says against itself. `memory_bytes` a GPU has, `ideal_seconds` the model's arithmetic takes at
    the peak of all GPUs in the precision of the run."""
    seconds = run.seconds
    if seconds and ideal_seconds > seconds:
        yield f"{seconds:.4g} s is less than the {ideal_seconds:.4g} s of its arithmetic at the peak of its GPUs"
    rate, batch = run.measured_tokens_per_s_per_gpu, (run.global_batch or 0.0) * (run.seq_len or 0.0)
    if run.measured_iter_time_s and rate and batch:
        counted = rate * (run.n_gpus or 0.0) * run.measured_iter_time_s
        if abs(counted / batch - 1.0) > RATE_SLACK:
            yield f"its tokens a second times its seconds are {counted:.4g} tokens, its batch has {batch:.4g}"
    if (run.measured_mem_gb or 0.0) * GIGA > MEMORY_SLACK * memory_bytes:
        yield f"{run.measured_mem_gb:g} GB are more than the {memory_bytes / GIGA:.4g} GB of its GPU"
    if run.dispatcher == "flex" and run.ep == 1 and experts and (run.n_gpus or 0.0) > 1:
        yield "ep is 1, but DeepEP and HybridEP are for experts on several GPUs"
    if (run.n_experts or 0.0) > 1 and not experts:
        yield "it has experts, but no top_k"
