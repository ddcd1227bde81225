"""Machines of several GPU types in a launch script: which one is started as which, and a look at its GPUs before.

Stages are cut for the types that they stand on; on machines in another order every step would wait, or memory run out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, chain, groupby, repeat

from shardwright.plans.mesh import Host
from shardwright.plans.plan import Plan
from shardwright.spec.cluster import kind_of
from shardwright.units import GIBIBYTE

LOOK = """expect() { # pattern of the GPUs' name, GiB of their memory
    python3 - "$@" <<'END'
import re, sys, torch

pattern, size = sys.argv[1], float(sys.argv[2])
there = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
fits = [re.search(pattern, gpu.name) and 0.9 < gpu.total_memory / 2**30 / size < 1.1 for gpu in there]
if not there or not all(fits):
    found = ", ".join(sorted({f"{gpu.name} with {gpu.total_memory / 2**30:.3g} GiB" for gpu in there})) or "no GPU"
    sys.exit(f"This machine is not the one of its number in the plan: {pattern} with {size:g} GiB; it has {found}.")
END
}"""


def machine_check(plan: Plan, hosts: Sequence[Host]) -> str:
    """Return lines of bash that end on a machine whose GPUs are not those that the plan has there. Where the plan has
    one type these say which of the cluster's it is, if there are several. NODE_RANK is the number of the machine."""
    runs = [(gpu, len(list(group))) for gpu, group in groupby(host.gpu for host in hosts)]
    memory = {pool.gpu.name: pool.gpu.memory_bytes / GIBIBYTE for pool in plan.cluster.pools}
    if len(memory) < 2:
        return ""
    ends = list(accumulate(count for _, count in runs))
    order = "; ".join(_numbers(end - count, end) + f" {gpu}" for (gpu, count), end in zip(runs, ends, strict=True))
    named = f"# Machines by NODE_RANK: {order}."
    if len(runs) < 2:
        return named
    tests = [
        f"{word} ((NODE_RANK < {end})); then expect '{_pattern(gpu)}' {memory[gpu]:.3g}"
        for word, (gpu, _), end in zip(chain(["if"], repeat("elif")), runs, ends, strict=False)
    ]
    given = ': "${NODE_RANK:?number of this machine, from 0}"'
    return "\n".join([named, LOOK, given, *tests, "fi"])


def _numbers(begin: int, end: int) -> str:
    return str(begin) if end == begin + 1 else f"{begin} to {end - 1}"


def _pattern(gpu: str) -> str:
    """Return what is in the name that a driver gives a GPU of the catalogue: A100(?![0-9A-Z]) in NVIDIA A100-SXM4-80GB,
    RTX ?3090 in NVIDIA GeForce RTX 3090."""
    chip = kind_of(gpu).partition("-")[0]
    parts = re.sub(r"(?<=RTX)(?=[0-9A-Z])|(?<=[0-9])(?=Ada)|(?<=PRO)(?=[0-9])|(?<=Titan)(?=RTX)", " ?", chip)
    return f"(?i){parts}(?![0-9A-Z])"
