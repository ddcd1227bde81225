"""A plan as SkyPilot YAML: one task for one GPU type, a job group of a task for each type otherwise.

Format: SkyPilot 0.14, https://docs.skypilot.co/en/latest/reference/yaml-spec.html. Tasks of a job group reach each
other by the names `TASK-INDEX.GROUP`; all are in one region. `run.sh` and what it reads lie beside the YAML and are
copied with the working folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from shardwright.errors import Problem, SpecError, bad
from shardwright.exporters.exported import Exported, yaml_text
from shardwright.exporters.runner import MachineRange, Runner, part_of_a_box, runner_of
from shardwright.files import shipped_table
from shardwright.plans.plan import Plan
from shardwright.rows import stated
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import machines_used

VERSION = "0.14.1"
GROUP = "shardwright"
SETUP = {"shardwright": 'pip install "${SHARDWRIGHT}[runtime]"', "megatron": 'test -d "$MEGATRON_PATH"'}
RESTARTS = 3  # of a job whose own code failed, e.g. by a GPU that fell off the bus


@cache
def gpu_names() -> dict[str, str]:
    """Return what SkyPilot calls each GPU of the catalogue that it can rent."""
    return {row["gpu"]: row["skypilot"] for row in shipped_table("shardwright.exporters", "skypilot_gpu_names.csv")}


def export_task(plan: Plan) -> Exported:
    """Return `task.yaml` with the files that it runs. Raises SpecError for an illegal plan, and names every GPU type
    that SkyPilot has no name for."""
    if mixed := [pool for pool, _ in machines_used(plan.cluster, plan.gpus_by_type) if pool.mixed]:
        message = f"{mixed[0].machines}: SkyPilot rents machines with GPUs of one type"
        _, pin = part_of_a_box(plan)
        pin = pin or ("" if plan.job.framework == OWN else f"--framework {OWN}")
        hint = f"plan on all GPUs of the machine with {pin} for --to kubernetes" if pin else "use --to kubernetes"
        raise bad("cluster", message, f"{hint}, or start the plan by hand")
    runner = runner_of(plan)
    unknown = [group.kind for group in runner.machines if group.kind not in gpu_names()]
    if unknown:
        have = ", ".join(sorted(gpu_names()))
        raise SpecError(*(Problem("cluster", f"SkyPilot has no name for {gpu}", f"it has {have}") for gpu in unknown))
    uneven = [group for group in runner.machines if group.gpus != group.has]
    if uneven:
        raise bad(
            "cluster",
            f"the plan uses {uneven[0].gpus} of {uneven[0].has} GPUs of a {uneven[0].types[0]} machine",
            "SkyPilot rents whole machines: plan with a number of GPUs that fills them",
        )
    documents = list(_documents(runner))
    text = "\n---\n".join(yaml_text(document) for document in documents)
    header = "# sky launch task.yaml" if len(documents) == 1 else "# sky jobs launch task.yaml"
    words = f"{header}   (written by shardwright for SkyPilot {VERSION}; beside it: {', '.join(runner.files)})\n"
    return Exported(
        target="skypilot",
        version=VERSION,
        files={"task.yaml": words + text, **runner.files},
        document={"documents": documents, "files": dict(runner.files)},
    )


def _documents(runner: Runner) -> Iterator[dict[str, object]]:
    if len(runner.machines) == 1:
        (group,) = runner.machines
        address = 'export MASTER_ADDR="$(head -n1 <<<"$SKYPILOT_NODE_IPS")"'
        yield _task(runner, group, GROUP, address)
        return
    yield {"name": GROUP, "execution": "parallel"}
    first = _task_name(runner.machines[0])
    for group in runner.machines:
        yield _task(runner, group, _task_name(group), f'export MASTER_ADDR="{first}-0.${{SKYPILOT_JOBGROUP_NAME}}"')


def _task_name(group: MachineRange) -> str:
    return f"{group.kind.lower()}-from-{group.first}"


def _task(runner: Runner, group: MachineRange, name: str, address: str) -> dict[str, object]:
    again = {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": RESTARTS}
    resources = {
        "accelerators": {gpu_names()[group.kind]: group.gpus},
        "use_spot": group.spot,
        "network_tier": "best" if runner.nodes > 1 else None,
        "job_recovery": again if group.spot else None,
    }
    rank = "$SKYPILOT_NODE_RANK" if group.first == 0 else f"$(({group.first} + SKYPILOT_NODE_RANK))"
    install = SETUP.get(runner.name, f'test -e "${runner.settings[0][0]}"')
    return {
        "name": name,
        "num_nodes": group.count,
        "workdir": ".",
        "resources": stated(resources),
        "envs": dict.fromkeys((setting for setting, _ in runner.settings), None),
        "setup": f"{install}\n",
        "run": f"{address}\nexport NODE_RANK={rank}\nbash run.sh\n",
    }
