"""Programs that start other programs: which program is started in the end, and what they tell of machines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.importers.shell.unknown import is_known

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


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """The program that is started in the end, the words around it, and variables that they set."""

    words: tuple[str, ...]
    around: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
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
        word.endswith((".sh", ".slurm", ".sbatch", ".py")) and not before.startswith("--")
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
