"""What Slurm tells a job: the options of #SBATCH lines, and the variables that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping

DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.*?)(?:[ \t]+#.*)?$", re.M)
OPTION = re.compile(r"(--[\w-]+|-[A-Za-z])(?:[= \t]*)(\S*)")
SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus", "-J": "--job-name"}


def sbatch(text: str) -> dict[str, str]:
    """Return the options of #SBATCH lines, by their long names."""
    found: dict[str, str] = {}
    for line in DIRECTIVE.findall(text):
        for option, value in OPTION.findall(line):
            found[SHORT.get(option, option)] = value
    return found


def slurm_variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets for a job of these options (sbatch's manual, output environment)."""
    nodes = options.get("--nodes", "").split("-")[-1]
    tasks, per_node = options.get("--ntasks", ""), options.get("--ntasks-per-node", "")
    gpus = re.search(r"(\d+)$", options.get("--gpus-per-node", "") or _gpus_of(options.get("--gres", "")))
    found = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_NTASKS": tasks or (str(int(nodes) * int(per_node)) if nodes.isdigit() and per_node.isdigit() else ""),
        "SLURM_CPUS_PER_TASK": options.get("--cpus-per-task", ""),
        "SLURM_JOB_NAME": options.get("--job-name", ""),
        "SLURM_GPUS_PER_NODE": gpus[1] if gpus and "--gpus-per-node" in options else "",
        "SLURM_GPUS_ON_NODE": gpus[1] if gpus else "",
    }
    found["SLURM_NPROCS"] = found["SLURM_NTASKS"]
    return {name: value for name, value in found.items() if value}


def _gpus_of(resources: str) -> str:
    """The GPUs among generic resources: `gpu:8`, `gpu:a100:4,nvme:1`."""
    return next((entry for entry in resources.split(",") if entry.startswith("gpu")), "")
