"""Programs that start other programs: which program is started in the end, and what they tell of machines; and what
Slurm tells a job: the options of #SBATCH lines, and the variables that follow from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from shardwright.importers.shell.unknown import is_known
from shardwright.records import record

LAUNCHING = re.compile(
    r"torchrun|torchrun-hpc|python\d?(?:\.\d+)?|deepspeed|accelerate|accelerate-launch|megatron|bash|sh|zsh|composer|nemo|tune"
    r"|llamafactory-cli|lmf|axolotl|trl"
)
WRAPPERS = frozenset(
    (
        *("nohup", "time", "env", "sudo", "stdbuf", "numactl", "timeout", "nsys", "ncu", "rocprof", "rocprofv3"),
        *("singularity", "apptainer", "docker", "podman", "enroot", "srun", "sbatch", "mpirun", "mpiexec", "jsrun"),
        *("mpirun_rsh", "aprun", "flux", "ssh", "pdsh", "clush", "conda", "micromamba", "poetry", "uv", "xargs"),
        *("nice", "ionice", "taskset", "setsid", "ibrun", "prun", "unbuffer", "ray"),
    )
)
SHELLS = re.compile(r"(?:.*/)?(?:bash|sh|zsh|dash|ksh)", re.S)
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.*?)(?:[ \t]+#.*)?$", re.M)
OPTION = re.compile(r"(--[\w-]+|-[A-Za-z])(?:[= \t]*)(\S*)")
SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus", "-J": "--job-name"}


@record(kw_only=False)
class Unwrapped:
    """The program that is started in the end, the words around it, and variables that they set."""

    words: tuple[str, ...]
    around: tuple[str, ...]
    environment: Mapping[str, str]


@record(kw_only=False)
class Script:
    """A script that another shell runs."""

    text: str
    name: str
    arguments: tuple[str, ...]


def unwrapped(words: Sequence[str]) -> Unwrapped:
    """Return what `srun`, `mpirun`, `env`, `nohup`, containers and the like start in the end: the first word after
    theirs that is a launcher of training, an interpreter or a shell."""
    rest, around = list(words), []
    environment: dict[str, str] = {}
    while rest:
        name = rest[0].rsplit("/", 1)[-1]
        if name not in WRAPPERS:
            break
        place = next((i for i in range(1, len(rest)) if _starts(rest[i], rest[i - 1])), None)
        if place is None:
            break
        for word in rest[1:place]:
            match = ASSIGNMENT.fullmatch(word)
            if match and name == "env":
                environment[match[1]] = match[2]
        around += rest[:place]
        rest = rest[place:]
    return Unwrapped(tuple(rest), tuple(around), environment)


def _starts(word: str, before: str) -> bool:
    """Whether a word may be the program that a wrapper starts."""
    if word.rsplit("/", 1)[-1] in WRAPPERS and not before.startswith("-"):
        return True
    name = word.rsplit("/", 1)[-1]
    return LAUNCHING.fullmatch(name) is not None or (
        word.endswith((".sh", ".slurm", ".sbatch", ".py")) and (not before.startswith("--") or "=" in before)
    )


def script_of(words: Sequence[str], files: Callable[[str], str | None]) -> Script | None:
    """Return the script that a shell among `words` runs: `bash -c text`, `bash file`, `./file.sh`; None where they
    start something else, or a file that is not there."""
    if not words:
        return None
    if not SHELLS.fullmatch(words[0]):
        text = files(words[0]) if is_known(words[0]) and words[0].endswith((".sh", ".bash")) else None
        return None if text is None else Script(text, words[0], tuple(words[1:]))
    rest = list(words[1:])
    while rest and rest[0].startswith(("-", "+")):
        option = rest.pop(0)
        if option in ("-o", "--rcfile", "--init-file") and rest:
            rest.pop(0)
        elif re.fullmatch(r"-[a-z]*c", option) and rest:
            return Script(rest[0], rest[1] if len(rest) > 1 else words[0], tuple(rest[2:]))
    if not rest or not is_known(rest[0]):
        return None
    text = files(rest[0])
    return None if text is None else Script(text, rest[0], tuple(rest[1:]))


def sbatch(text: str) -> dict[str, str]:
    """Return the options of #SBATCH lines, by their long names."""
    options: dict[str, str] = {}
    for line in DIRECTIVE.findall(text):
        for option, value in OPTION.findall(line):
            options[SHORT.get(option, option)] = value
    return options


def slurm_variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets for a job of these options (sbatch's manual, output environment). It is
    submitted where its script is."""
    nodes = options.get("--nodes", "").split("-")[-1]
    tasks, per_node = options.get("--ntasks", ""), options.get("--ntasks-per-node", "")
    gpus = re.search(r"(\d+)$", options.get("--gpus-per-node", "") or _gpus_of(options.get("--gres", "")))
    variables = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_NTASKS": tasks or (str(int(nodes) * int(per_node)) if nodes.isdigit() and per_node.isdigit() else ""),
        "SLURM_CPUS_PER_TASK": options.get("--cpus-per-task", ""),
        "SLURM_JOB_NAME": options.get("--job-name", ""),
        "SLURM_GPUS_PER_NODE": gpus[1] if gpus and "--gpus-per-node" in options else "",
        "SLURM_GPUS_ON_NODE": gpus[1] if gpus else "",
    }
    variables["SLURM_NPROCS"] = variables["SLURM_NTASKS"]
    variables |= {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_SUBMIT_DIR": "."}  # any number: scripts ask for it
    return {name: value for name, value in variables.items() if value}


def _gpus_of(resources: str) -> str:
    """The GPUs among generic resources: `gpu:8`, `gpu:a100:4,nvme:1`."""
    return next((entry for entry in resources.split(",") if entry.startswith("gpu")), "")
