"""What machines start, for targets that only bring machines together: the trainer that the plan is priced for,
Megatron-LM where it can run the plan, else `shardwright train`.

`run.sh` is the same on every machine. It needs NODE_RANK, the number of the machine in the order of `machines`, and
MASTER_ADDR, the address of machine 0; the target sets both.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import accumulate, groupby

from shardwright.errors import bad, reject
from shardwright.exporters.exported import run_script
from shardwright.exporters.megatron.launch import OWN_SETTINGS, megatron_files
from shardwright.exporters.megatron.limits import unsupported
from shardwright.exporters.targets import export, limits_of
from shardwright.plans.check import check
from shardwright.plans.document import dumps
from shardwright.plans.mesh import hosts
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.catalog.gpus import gpus as catalogue
from shardwright.spec.cluster import Gpu, NodePool, kind_of, machines_used

DATA, OUT = ("DATA", "token file of `shardwright tokens`"), ("OUT", "folder for checkpoints and metrics")
SCRIPT = ("TRAIN_SCRIPT", "your training script, on every machine")
OF_FRAMEWORKS = {  # the target whose files run plans for a framework, and what is the user's to set for it
    "fsdp": ("accelerate", (SCRIPT,)),
    "deepspeed": ("deepspeed", (SCRIPT,)),
    "torchtitan": (
        "torchtitan",
        (("HF_ASSETS_PATH", "folder with the tokenizer"), ("LEARNING_RATE", "peak learning rate")),
    ),
}
PACKAGE = ("SHARDWRIGHT", "what pip installs: a wheel or a checkout of shardwright")


@record
class MachineRange:
    """Machines with GPUs of `vendor`: `count` from number `first` on, of which each gives `gpus`, of one type or of
    several, to the plan, and has as many or more."""

    types: tuple[str, ...]
    first: int
    count: int
    gpus: int
    has: int
    spot: bool
    vendor: str

    @property
    def kind(self) -> str:
        return "+".join(map(kind_of, self.types))


@record
class Runner:
    """Files that every machine has, the environment that is the user's to set (name, meaning), and the machines."""

    name: str
    files: Mapping[str, str]
    settings: tuple[tuple[str, str], ...]
    machines: tuple[MachineRange, ...]

    @property
    def nodes(self) -> int:
        return sum(group.count for group in self.machines)


def runner_of(plan: Plan) -> Runner:
    """Return what runs a plan. Raises SpecError where the plan is not legal, and where Megatron-LM would have to be
    started once for each type of a machine."""
    reject(check(plan))
    machines = _machines(plan)
    target, settings = OF_FRAMEWORKS.get(plan.job.framework, ("", ()))
    limits = limits_of(target)
    if limits is not None and not any(limits(plan)):
        return Runner(name=target, files=export(plan, target).files, settings=settings, machines=machines)
    several = any(len(group.types) > 1 for group in machines)
    if several and plan.job.framework != OWN:
        message = "the plan is priced for Megatron-LM, which is started once for each GPU type of a machine"
        raise bad("cluster", message, "--framework train plans what is started once on each machine")
    if not several and not unsupported(plan) and (in_order := _mesh_machines(plan, machines)):
        machines = in_order
        script = megatron_files(plan, "torchrun").main
        return Runner(name="megatron", files={"run.sh": script}, settings=OWN_SETTINGS, machines=machines)
    files = {"run.sh": _own_script(plan, machines), "plan.json": dumps(plan)}
    return Runner(name="shardwright", files=files, settings=(DATA, OUT, PACKAGE), machines=machines)


def part_of_a_box(plan: Plan) -> tuple[str, str]:
    """Return where a plan wants some GPUs of a machine with several types, of which a pod gets any, and what to pin for
    all of them; nothing where it does not."""
    machines = _machines(plan)
    for pool, _ in machines_used(plan.cluster, plan.gpus_by_type):
        part = [group for group in machines if pool.gpu.name in group.types and group.gpus < group.has]
        if pool.mixed and part:
            pin = f"--framework {OWN} --set gpus={sum(group.count * group.has for group in machines)}"
            return (
                f"the plan uses {part[0].gpus} GPUs of {pool.machines}, and a pod that asks for so many gets any",
                pin,
            )
    return "", ""


def _machines(plan: Plan) -> tuple[MachineRange, ...]:
    """Return the machines in use, those with the same types that give equally many GPUs together."""
    sizes = list(machine_sizes(plan))
    groups: list[MachineRange] = []
    number = 0
    used = [pool for pool in plan.cluster.pools if plan.gpus_by_type[pool.gpu.name]]
    for _, alike in groupby(used, key=lambda pool: pool.machines):
        pools = list(alike)
        pool, types = pools[0], tuple(pool.gpu.name for pool in pools)
        left = sum(map(plan.gpus_by_type.__getitem__, types)) - sum(
            g.count * g.gpus for g in groups if g.types == types
        )
        taken = 0
        while left > 0 and taken < pool.nodes:
            gpus = sizes[number]
            same = groups and (groups[-1].types, groups[-1].gpus, groups[-1].spot) == (types, gpus, pool.spot)
            first, count = (groups[-1].first, groups.pop().count + 1) if same else (number, 1)
            groups.append(_range(pool, types, first, count, gpus))
            left, taken, number = left - gpus, taken + 1, number + 1
    return tuple(groups)


def _mesh_machines(plan: Plan, machines: tuple[MachineRange, ...]) -> tuple[MachineRange, ...]:
    """Return the machines of a plan in the order in which Megatron-LM numbers their ranks; none where it would go back
    and forth between types, which groups of machines cannot."""
    if plan.uniform:
        return machines
    runs = [(host, len(list(group))) for host, group in groupby(hosts(plan) or ())]
    if len({host.gpu for host, _ in runs}) < len(runs):
        return ()
    firsts = accumulate((count for _, count in runs), initial=0)
    return tuple(
        _range(plan.cluster.pool_of[host.gpu], (host.gpu,), first, count, host.gpus)
        for (host, count), first in zip(runs, firsts, strict=False)
    )


def _range(pool: NodePool, types: tuple[str, ...], first: int, count: int, gpus: int) -> MachineRange:
    return MachineRange(
        types=types,
        first=first,
        count=count,
        gpus=gpus,
        has=pool.gpus_of_machine,
        spot=pool.spot,
        vendor=vendor_of(pool.gpu),
    )


def vendor_of(gpu: Gpu) -> str:
    """Return who makes a GPU; of one that a user describes, who makes its architecture."""
    makers = {known.architecture: known.vendor for known in catalogue().values()}
    return makers.get(gpu.architecture, gpu.vendor) if gpu.vendor == "custom" else gpu.vendor


def _own_script(plan: Plan, machines: tuple[MachineRange, ...]) -> str:
    """Return the script that starts `shardwright train` on one machine."""
    counts = [str(group.gpus) for group in machines for _ in range(group.count)]
    name = " ".join(plan.model.name.split())
    return run_script(
        f"{name} on {plan.gpus} GPUs. Written by shardwright for `shardwright train`.",
        "# Yours to set, in the environment:",
        *(f': "${{{name}:?{meaning.replace("`", "")}}}"' for name, meaning in (DATA, OUT)),
        "export PYTORCH_ALLOC_CONF=expandable_segments:True",
        f"GPUS=({' '.join(counts)})",
        f'exec torchrun --nnodes {len(counts)} --nproc-per-node "${{GPUS[NODE_RANK]}}" --node-rank "${{NODE_RANK}}" \\',
        '    --master-addr "${MASTER_ADDR}" --master-port 29500 \\',
        f'    -m shardwright train {shlex.quote("plan.json")} --data "${{DATA}}" --out "${{OUT}}" "$@"',
    )
