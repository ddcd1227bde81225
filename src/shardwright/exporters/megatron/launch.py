"""What `export --to megatron` writes: a launch script in bash, for torchrun by hand or for Slurm.

With machines of several GPU types it says which one is started as which, and looks at its GPUs before: stages are cut
for the types that they stand on; on machines in another order every step would wait, or memory run out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import accumulate, chain, groupby, repeat
from typing import Literal

from shardwright.errors import bad
from shardwright.exporters.exported import Exported
from shardwright.exporters.megatron.export import ArgumentGroup, MegatronExport, to_megatron
from shardwright.plans.mesh import Host
from shardwright.plans.plan import Plan
from shardwright.rows import holding
from shardwright.spec.cluster import kind_of
from shardwright.units import GIBIBYTE, format_seconds

Launcher = Literal["torchrun", "slurm"]
LINE_WIDTH = 110
# What a plan cannot know. Every one has to be set, in the environment or here.
OWN_SETTINGS = (
    ("MEGATRON_PATH", "folder of the Megatron-LM checkout"),
    ("DATA_PATH", "prefix of the tokenized data set, as tools/preprocess_data.py wrote it"),
    ("TOKENIZER_TYPE", "HuggingFaceTokenizer, SentencePieceTokenizer, …"),
    ("TOKENIZER_MODEL", "name or file of the tokenizer"),
    ("CHECKPOINT_DIR", "folder to save to and to resume from"),
    ("LEARNING_RATE", "peak learning rate"),
)
TRAIN_ITERS = ("TRAIN_ITERS", "optimizer steps to train")
OWN_ARGUMENTS = (
    ("--data-path", "DATA_PATH"),
    ("--tokenizer-type", "TOKENIZER_TYPE"),
    ("--tokenizer-model", "TOKENIZER_MODEL"),
    ("--save", "CHECKPOINT_DIR"),
    ("--load", "CHECKPOINT_DIR"),
    ("--lr", "LEARNING_RATE"),
)
SAVE_INTERVAL = "1000"

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


def megatron_files(plan: Plan, launcher: Launcher) -> Exported:
    """Return the launch script of a plan, for `torchrun` by hand or `slurm`. Raises SpecError as `to_megatron`, and
    where Slurm would have to keep an order of machines."""
    exported = to_megatron(plan)
    if launcher == "slurm" and len(plan.gpus_by_type) > 1:
        what = "orders machines by itself, and this plan needs its GPU types in order"
        raise bad("--launcher slurm", what, "--launcher torchrun, started once on each machine")
    text = launch_script(plan, exported, launcher=launcher)
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


def launch_script(plan: Plan, export: MegatronExport, launcher: Launcher = "torchrun") -> str:
    """Return a bash script that starts `export`, the launch of `plan`, on every machine.

    With `torchrun` the script is run on each machine with NODE_RANK and MASTER_ADDR set; with `slurm` it is handed to
    sbatch once. Running it without the settings that are the user's ends with the name of the one that is missing.
    """
    sections = [
        _header(plan, export, launcher),
        _settings(export),
        _environment(export),
        _arguments(export),
        _own_arguments(export, launcher),
        machine_check(plan, export.hosts),
        _start(export, launcher),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _header(plan: Plan, export: MegatronExport, launcher: Launcher) -> str:
    lines = ["#!/usr/bin/env bash"]
    if launcher == "slurm":
        lines += _slurm_header(plan, export)
    gpus = " + ".join(f"{count} {gpu}" for gpu, count in plan.gpus_by_type.items())
    what = f"{plan.model.name} on {gpus}"
    # A line break in a name would turn the rest of it into commands.
    lines += [f"# {' '.join(what.split())}. Written by shardwright for Megatron-LM {export.version}."]
    if plan.prediction is not None:
        low, high = (format_seconds(seconds) for seconds in plan.prediction.interval)
        seconds = format_seconds(plan.prediction.iteration_seconds)
        lines += [
            f"# Predicted: {seconds} a step ({low} to {high}), {plan.prediction.tokens_per_second:,.0f} tokens/s."
        ]
    return "\n".join([*lines, "set -euo pipefail"])


def _slurm_header(plan: Plan, export: MegatronExport) -> list[str]:
    """Return what is asked of Slurm; what only the site knows is there as a comment. TERM comes five minutes before the
    end, for the checkpoint that --exit-signal-handler writes."""
    gpu = plan.stages[0].gpu
    return [
        "#SBATCH --job-name=shardwright",
        f"#SBATCH --nodes={export.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={export.gpus_per_node}",
        "#SBATCH --exclusive",
        "#SBATCH --signal=TERM@300",
        "# Yours, where the site asks for them:",
        f"##SBATCH --constraint={gpu.split('-')[0].casefold()}",
        "##SBATCH --time=24:00:00 --account=NAME --partition=NAME --output=%x-%j.log",
        *_racks(plan, export),
    ]


def _racks(plan: Plan, export: MegatronExport) -> list[str]:
    """Say which machines hold one stage, or one replica: those belong in one rack, or NVLink domain."""
    depth, whole = len(plan.replicas[0].stages), len(set(export.machine_gpus)) == 1
    parts, what = (depth, "stage") if plan.rank_order == "tp-cp-ep-dp-pp" else (plan.data_parallel, "replica")
    nodes = export.nodes // parts
    if parts < 2 or not whole or nodes < 2 or export.nodes % parts:
        return []
    return [
        f"# Every {nodes} machines in Slurm's order hold one {what}: keep them in one rack (its topology plugin does)."
    ]


def _settings(export: MegatronExport) -> str:
    lines = ["# Yours to set, a plan does not know these: in the environment, or with lines NAME=value above this one."]
    settings = OWN_SETTINGS if "--train-iters" in export.arguments else (*OWN_SETTINGS, TRAIN_ITERS)
    lines += [f': "${{{name}:?{meaning}}}"' for name, meaning in settings]
    return "\n".join(lines)


def _environment(export: MegatronExport) -> str:
    pairs = (*export.environment, ("PYTORCH_ALLOC_CONF", "expandable_segments:True"))
    return "\n".join(f"unset {name}" if value is None else f"export {name}={value}" for name, value in pairs)


def _arguments(export: MegatronExport) -> str:
    blocks = ["\n".join(_group(group)) for group in export.groups]
    return "ARGUMENTS=(\n" + "\n\n".join(blocks) + "\n)"


def _group(group: ArgumentGroup) -> list[str]:
    """Title and note as comments, then the arguments, several on a line."""
    lines = [f"    # {group.title}"] + ([f"    # {group.note}"] if group.note else [])
    line = ""
    for argument in group.arguments:
        words = " ".join(map(_quoted, argument))
        if line and len(line) + len(words) + 5 > LINE_WIDTH:
            lines.append("    " + line)
            line = ""
        line = f"{line} {words}" if line else words
    return [*lines, "    " + line]


def _quoted(word: str) -> str:
    """A comma between elements of an array looks like a mistake."""
    return f"'{word}'" if "," in word and shlex.quote(word) == word else shlex.quote(word)


def _own_arguments(export: MegatronExport, launcher: Launcher) -> str:
    lines = [f'{flag} "${{{name}}}"' for flag, name in OWN_ARGUMENTS]
    more = holding(
        ("--train-iters" not in export.arguments, '--train-iters "${TRAIN_ITERS}"'),
        (launcher == "slurm", "--exit-signal-handler"),
        (True, f"--save-interval {SAVE_INTERVAL}"),
    )
    return "\n".join(["OWN_ARGUMENTS=(", *(f"    {line}" for line in (*lines, *more)), ")"])


def _start(export: MegatronExport, launcher: Launcher) -> str:
    program = f'"${{MEGATRON_PATH}}/{export.program}" "${{ARGUMENTS[@]}}" "${{OWN_ARGUMENTS[@]}}" "$@"'
    counts = f"({' '.join(map(str, export.machine_gpus))})"
    even = str(export.gpus_per_node) if len(set(export.machine_gpus)) == 1 else ""
    words = _slurm(export, counts, even) if launcher == "slurm" else _torchrun(export, counts, even)
    return f"{words} \\\n    {program}"


def _torchrun(export: MegatronExport, counts: str, even: str) -> str:
    """Return how one machine is started; `even` is the number of processes where all machines have as many."""
    processes = even or '"${GPUS[NODE_RANK]}"'
    size = f"torchrun --nnodes {export.nodes} --nproc-per-node {processes}"
    if export.nodes == 1:
        return size
    rendezvous = '--node-rank "${NODE_RANK:?number of this machine, from 0}" \\\n'
    rendezvous += '    --master-addr "${MASTER_ADDR:?address of machine 0}" --master-port 29500'
    return ("" if even else f"GPUS={counts}\n") + f"{size} \\\n    {rendezvous}"


def _slurm(export: MegatronExport, counts: str, even: str) -> str:
    """Return how all machines are started at once, each with its own number of processes where they differ."""
    head = [
        'MASTER_ADDR="$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)"',
        "export MASTER_ADDR",
        "CONTAINER=()  # for instance (--container-image=IMAGE --container-mounts=/data)",
    ]
    size = even or '"${gpus[SLURM_NODEID]}"'
    under_slurm = f'torchrun --nnodes {export.nodes} --nproc-per-node {size} --node-rank "${{SLURM_NODEID}}"'
    rendezvous = '--master-addr "${MASTER_ADDR}" --master-port 29500'
    command = f'{"" if even else f"gpus={counts}; "}exec {under_slurm} {rendezvous} "$@"'
    cores = '--cpus-per-task "${SLURM_CPUS_ON_NODE:-1}"'
    hint = "# shellcheck disable=SC2016 # the machines put these in"
    return "\n".join([*head, hint, f"srun {cores} \"${{CONTAINER[@]}}\" \\\n    bash -c '{command}' launch"])


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
    if plan.cluster.mixed:
        named += "\n# Start the GPUs of each type in a machine as if they were one: CUDA_VISIBLE_DEVICES says which."
        if len(runs) < 2:
            return "\n".join([named, LOOK, f"expect '{_pattern(runs[0][0])}' {memory[runs[0][0]]:.3g}"])
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
