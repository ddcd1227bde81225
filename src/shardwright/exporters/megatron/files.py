"""A plan as the files with which Megatron-LM runs it."""

from __future__ import annotations

from shardwright.errors import bad
from shardwright.exporters.exported import Exported
from shardwright.exporters.megatron.export import to_megatron
from shardwright.exporters.megatron.launch import launch_script
from shardwright.plans.plan import Plan


def megatron_files(plan: Plan, launcher: str) -> Exported:
    """Return the launch script of a plan, for `torchrun` by hand or `slurm`. Raises SpecError as `to_megatron`, and
    where Slurm would have to keep an order of machines."""
    exported = to_megatron(plan)
    if launcher == "slurm" and len(plan.gpus_by_type) > 1:
        what = "orders machines by itself, and this plan needs its GPU types in order"
        raise bad("--launcher slurm", what, "--launcher torchrun, started once on each machine")
    text = launch_script(plan, exported, launcher=launcher)  # type: ignore[arg-type]
    return Exported(
        target="megatron",
        version=exported.version,
        files={"run.sh": text},
        document={
            "environment": dict(exported.environment),
            "arguments": list(exported.arguments),
            "launcher": launcher,
            "script": text,
        },
    )
