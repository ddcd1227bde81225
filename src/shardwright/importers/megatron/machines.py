"""Plans over several GPU types: which machine has which ranks, as the scripts that we export say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from shardwright.errors import bad
from shardwright.importers.launches import Launch
from shardwright.importers.shell.read import ShellScript
from shardwright.plans.mesh import Host, hosts
from shardwright.plans.plan import Plan, Replica
from shardwright.spec.cluster import Cluster

ORDER = re.compile(r"^# Machines by NODE_RANK: (?P<runs>.+)\.$", re.MULTILINE)
RUN = re.compile(r"(?P<first>\d{1,6})(?: to (?P<last>\d{1,6}))? (?P<gpu>\S+)")
EXAMPLE = "# Machines by NODE_RANK: 0 to 3 H100-SXM; 4 to 11 A100-SXM-80."


def hosts_of(script: ShellScript, launch: Launch, cluster: Cluster, name: str) -> tuple[Host, ...]:
    """Return the machines that a script names, in the order of their ranks; none where it names none. Raises SpecError
    for a line that cannot be read, and for machines that the cluster has not."""
    line = ORDER.search(script.text)
    if line is None:
        return ()
    types: list[str] = []
    sizes = {pool.gpu.name: pool.gpus_per_node for pool in cluster.pools}
    for text in line["runs"].split("; "):
        run = RUN.fullmatch(text)
        last = None if run is None else int(run["last"] or run["first"])
        if run is None or last is None or int(run["first"]) != len(types) or last < len(types) or last > cluster.gpus:
            raise bad(name, f"{text!r} does not go on the order of machines", f"write it as {EXAMPLE}")
        if run["gpu"] not in sizes:
            raise bad(name, f"names {run['gpu']}, which the cluster has not", f"it has {', '.join(sizes)}")
        types += [run["gpu"]] * (last + 1 - len(types))
    counts = script.arrays.get("GPUS", ())
    each = launch.processes_per_node if isinstance(launch.processes_per_node, int) else None
    if len(counts) == len(types) and all(count.isdigit() for count in counts):
        return tuple(Host(gpu=gpu, gpus=int(count)) for gpu, count in zip(types, counts, strict=True))
    return tuple(Host(gpu=gpu, gpus=each or sizes[gpu]) for gpu in types)


def on_hosts(plan: Plan, machines: Sequence[Host], name: str) -> Plan:
    """Return a plan of one type, a mesh of ranks, on machines of several. Raises SpecError where a stage would stand on
    two types, or another order of machines runs it."""
    (replica,) = plan.replicas
    ranks = [host.gpu for host in machines for _ in range(host.gpus)]
    size, depth = replica.stages[0].gpus, len(replica.stages)
    together = plan.rank_order == "tp-cp-ep-pp-dp"

    def types(copy: int) -> tuple[str, ...]:
        firsts = [stage + depth * copy if together else copy + replica.count * stage for stage in range(depth)]
        found = [set(ranks[size * first : size * (first + 1)]) for first in firsts]
        if any(len(each) != 1 for each in found):
            raise bad(name, "a stage would stand on GPUs of two types", "order the machines by the stages they hold")
        return tuple(gpu for (gpu,) in found)

    replicas: list[Replica] = []
    for own, group in groupby(types(copy) for copy in range(replica.count)):
        stages = tuple(replace(stage, gpu=gpu) for stage, gpu in zip(replica.stages, own, strict=True))
        replicas.append(replace(replica, count=len(list(group)), stages=stages))
    found = replace(plan, replicas=tuple(replicas))
    if hosts(found) != tuple(machines):
        hint = "order the machines as `shardwright export` does"
        raise bad(name, "no plan puts its stages on the machines in this order", hint)
    return found
