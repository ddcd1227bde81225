"""Starts of training among the commands of a script: how many processes, which program, with which arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from shardwright.importers.shell.read import ShellScript
from shardwright.importers.shell.state import Started
from shardwright.importers.shell.unknown import is_known, shown
from shardwright.importers.shell.wrappers import WRAPPERS
from shardwright.records import record
from shardwright.spec.cluster import Cluster

Count = int | str | None  # as it is written where it is said and not known
PYTHON = re.compile(r"(?:.*/)?python\d?(?:\.\d+)?", re.S)
LAUNCHERS = {
    **{name: name for name in ("torchrun", "deepspeed", "accelerate", "composer", "tune")},
    "torchrun-hpc": "torchrun",
}
VERBS = {"accelerate": "launch", "tune": "run"}  # words that some of them want first
# Programs that start a training on all GPUs of a machine, with the word for it and the launcher that they use.
COMMANDS = {"llamafactory-cli": "train", "lmf": "train", "axolotl": "train", "trl": ""}
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
PROGRAM = re.compile(r".*\.py", re.S)
# Options of launchers that stand alone; all others of theirs take a value.
SWITCHES = frozenset(
    (
        *("--standalone", "--no-python", "-m", "--module", "--run-path", "--use-env", "--multi-gpu", "--use-fsdp"),
        *("--use-deepspeed", "--debug", "--same-network", "--dynamo-use-fullgraph", "--no-local-rank", "--no-ssh"),
        *("--force-multi", "--elastic-training", "--save-pid", "--cpu", "--tpu", "--use-megatron-lm", "--quiet", "-q"),
        *("--use-parallelism-config", "-u", "-O", "-B", "-E", "-I", "-s", "-S", "-v"),
    )
)
EVERY = ("gpu", "auto", "cuda")  # torchrun's words for a process on each GPU of a machine
ELEMENT = re.compile(r"\$\{(?P<array>\w+)\[.+\]\}")  # of an array, by the number of a machine
NODES = ("--nnodes", "--num-nodes", "--num-machines")
EACH = ("--nproc-per-node", "--num-gpus", "--procs-per-node", "--nproc")
ALL = ("--num-processes", "--world-size")
TASKS = ("-n", "-np", "--np", "--ntasks", "--n")
TASK_NODES = ("-N", "--nodes")
TASKS_EACH = ("--ntasks-per-node", "--npernode", "-ppn", "-npernode", "--tasks-per-node")


@record
class Launch:
    """One start of a program. Counts are None where they are not said, or not known. `options` are the launcher's own,
    by long names with hyphens. `visible` devices are left by the environment. `alone` says that nothing around it
    starts it more than once."""

    arguments: tuple[str, ...]
    launcher: str = ""
    program: str = ""
    nodes: Count = None
    processes_per_node: Count = None
    processes: Count = None
    options: Mapping[str, str] = field(default_factory=dict)
    line: int = 1
    visible: int | None = None
    alone: bool = False

    def gpus(self, cluster: Cluster) -> tuple[int | None, tuple[str, ...]]:
        """Return the processes of all machines, one a GPU, None where the script does not say; and which numbers of
        `cluster` stand for those that the script leaves open."""
        if self.processes is not None:
            return (self.processes, ()) if isinstance(self.processes, int) else (None, ())
        per_node, nodes = self.processes_per_node, self.nodes
        if per_node is None and self.launcher in ("torchrun", "tune"):
            per_node = 1  # its default
        sizes = {pool.gpus_per_node for pool in cluster.pools}
        if per_node is None or (isinstance(per_node, str) and len(sizes) > 1):
            return None, ()
        notes = []
        if isinstance(per_node, str):
            notes += [] if per_node in EVERY else [f"{per_node} processes on each machine are not known"]
            (per_node,) = sizes
        if isinstance(nodes, str):
            notes.append(f"{nodes} machines are not known")
            nodes = sum(pool.nodes for pool in cluster.pools)
        told = f"all {nodes or 1} of the cluster with {per_node} GPUs each are taken"
        return per_node * (nodes or 1), tuple(f"{note}: {told}" for note in notes)

    def machine(self, cluster: Cluster) -> int | None:
        """Return the GPUs of a machine that a launcher sees, None where machines of `cluster` differ."""
        sizes = {pool.gpus_per_node for pool in cluster.pools}
        return self.visible or (sizes.pop() if len(sizes) == 1 else None)


def launches(script: ShellScript) -> tuple[Launch, ...]:
    """Return the programs that a script starts with Python, in order."""
    found = tuple(launch for started in script.started if (launch := _launch(started, script.slurm)) is not None)
    return tuple(_counted(launch, script.arrays) for launch in found) or tuple(_bare(script))


def _counted(launch: Launch, arrays: Mapping[str, tuple[str, ...]]) -> Launch:
    """Return a launch whose machines each take their number of processes from an array, with the sum of these."""
    element = ELEMENT.fullmatch(launch.processes_per_node) if isinstance(launch.processes_per_node, str) else None
    counts = arrays.get(element["array"], ()) if element else ()
    whole = counts and launch.processes is None and len(counts) == launch.nodes and all(map(str.isdigit, counts))
    return replace(launch, processes=sum(map(int, counts))) if whole else launch


def _launch(started: Started, slurm: Mapping[str, str]) -> Launch | None:
    if (command := started.words[0].rsplit("/", 1)[-1]) in COMMANDS:
        return _of_command(command, started)
    launcher, words = _launcher(started.words)
    if launcher is None:
        return None
    options, program, arguments = _parts(words)
    if program is None:
        return None
    around = _options(started.around)
    nodes, per_node, processes = _number(NODES, options), _number(EACH, options), _number(ALL, options)
    if launcher == "python":
        nodes = nodes or _number(TASK_NODES, around) or _number(TASK_NODES, slurm)
        per_node = per_node or _number(TASKS_EACH, around) or _number(TASKS_EACH, slurm)
        processes = processes or _number(TASKS, around) or (_number(TASKS, slurm) if started.around else None)
        lone = not started.around and _count(started.environment.get("CUDA_VISIBLE_DEVICES", "")) == 1
        processes = processes or (1 if lone else None)
    if launcher == "composer":  # all GPUs of a machine, unless it is told
        processes = processes or _number(("WORLD_SIZE",), started.environment)
        per_node = per_node or _number(("-n",), options) or ("gpu" if processes is None else None)
    if launcher == "tune" and program is not None and "single_device" in program:
        processes = 1
    if launcher == "deepspeed" and processes is None:
        processes = _included(options.get("--include") or options.get("-i") or "")
    every = launcher == "deepspeed" or (launcher == "torchrun" and any(name in options for name in EACH))
    if every and per_node is None and processes is None:
        per_node = _count(started.environment.get("CUDA_VISIBLE_DEVICES", ""))
    if per_node in EVERY:
        per_node = _count(started.environment.get("CUDA_VISIBLE_DEVICES", "")) or per_node
    if launcher == "deepspeed" and nodes is None and ("--hostfile" in options or "-H" in options):
        nodes = "the hostfile's"
    if launcher == "deepspeed" and nodes is not None and per_node is None:
        per_node = "gpu"
    return Launch(
        launcher=launcher,
        program=program,
        arguments=tuple(arguments),
        nodes=nodes,
        processes_per_node=per_node,
        processes=processes,
        options=options,
        line=started.line,
        visible=_count(started.environment.get("CUDA_VISIBLE_DEVICES", "")),
        alone=launcher == "python" and not started.around,
    )


def _of_command(command: str, started: Started) -> Launch | None:
    """Return what a trainer's own command starts: a process on each GPU of a machine, or of NNODES machines; under Ray
    as many as its configuration says (llamafactory/extras/misc.py 339)."""
    verb = COMMANDS[command]
    if len(started.words) < 2 or (verb and started.words[1] != verb):
        return None
    around, options = started.environment, _options(started.words)
    nodes = _number(("NNODES",), around)
    per_node = _number(("NPROC_PER_NODE",), around) or _count(around.get("CUDA_VISIBLE_DEVICES", ""))
    return Launch(
        launcher={"lmf": "llamafactory-cli"}.get(command, command),
        program=started.words[1],
        arguments=tuple(started.words[2:]),
        nodes=nodes,
        processes_per_node=None if around.get("USE_RAY", "0").casefold() in ("1", "y", "true") else per_node or "gpu",
        processes=_number(("--num_processes", "--num-processes"), options),
        line=started.line,
    )


def _number(names: Sequence[str], given: Mapping[str, str]) -> Count:
    """Return the first of some options, the larger of a range, as a number; as it is written where it is not known."""
    text = next((given[name] for name in names if name in given), "")
    text = text.rsplit(":", 1)[-1] if re.fullmatch(r"\d+:\d+", text) else text
    return int(text) if text.isdigit() else shown(text) or None


def _count(devices: str) -> int | None:
    """Return how many devices `0,1,3` names."""
    return devices.count(",") + 1 if re.fullmatch(r"\d+(,\d+)*", devices) else None


def _included(text: str) -> int | None:
    """Return how many devices DeepSpeed's `host:0,1@other:0,1` names; None where it takes all of a host."""
    counts = [_count(host.partition(":")[2]) for host in text.split("@")]
    return None if None in counts else sum(count or 0 for count in counts)


def _launcher(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return what starts the processes, and the words after it."""
    name = words[0].rsplit("/", 1)[-1] if words else ""
    if name in LAUNCHERS:
        return LAUNCHERS[name], words[2:] if name in VERBS and list(words[1:2]) == [VERBS[name]] else words[1:]
    if name == "accelerate-launch":
        return "accelerate", words[1:]
    if name.endswith(".sh"):  # a script that is not there is taken to start the program that it is given
        place = next((i for i, word in enumerate(words) if i and PROGRAM.fullmatch(word)), None)
        return ("python", words[place:]) if place is not None else (None, words)
    if not PYTHON.fullmatch(name):
        return None, words
    place = next((i for i in range(1, len(words)) if words[i] == "-m" or not words[i].startswith("-")), None)
    module = words[place + 1] if place is not None and words[place] == "-m" and place + 1 < len(words) else ""
    return (MODULES[module], words[(place or 0) + 2 :]) if module in MODULES else ("python", words[1:])


def _parts(words: Sequence[str]) -> tuple[dict[str, str], str | None, Sequence[str]]:
    """Return a launcher's options, the program and its arguments."""
    options: dict[str, str] = {}
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith("-"):
            return options, word, words[position + 1 :]
        name, sign, value = word.partition("=")
        name = name.replace("_", "-")
        position += 1
        if name in ("-m", "--module") and position < len(words):
            return options, words[position], words[position + 1 :]
        if name == "-c":
            return options, None, ()
        if not sign and name not in SWITCHES and position < len(words) and not PROGRAM.fullmatch(words[position]):
            value = words[position]
            position += 1
        options[name] = value
    return options, None, ()


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the options among words of `srun` or `mpirun`."""
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        name, sign, value = word.partition("=")
        if sign and name.startswith("-"):
            found[name] = value
        elif word.startswith("-") and place + 1 < len(words):
            found[word] = words[place + 1]
        if match := re.fullmatch(r"(-[nN])(\d+)", word):
            found[match[1]] = match[2]
    return found


def _bare(script: ShellScript) -> Iterator[Launch]:
    """Arguments alone: a command that begins with one, or arrays and variables that hold them, where no program is
    given any."""
    wrapped = (s.words for s in script.started if s.around or s.words[0].rsplit("/", 1)[-1] in WRAPPERS)
    if any(word.startswith("--") for words in wrapped for word in words[1:]):
        return
    words = next((started.words for started in script.started if started.words[0].startswith("--")), None)
    if words is None:
        items = [item for values in script.arrays.values() for item in values]
        words = tuple(word for item in items for word in (item.split() if item.strip().startswith("--") else [item]))
    if any(word.startswith("--") and is_known(word) for word in words):
        yield Launch(arguments=tuple(words))
