"""A plan from a Megatron-LM launch line or script, so that it can be judged beside others; over several GPU types, too:
which machine has which ranks, as the scripts that we export say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

from shardwright.errors import Problem, SpecError, bad, reject
from shardwright.exporters.megatron.export import dispatcher_of_plan
from shardwright.exporters.megatron.model import BESIDE_A_MODEL, by_pattern, letters_of
from shardwright.importers.launches import Launch
from shardwright.importers.megatron.flags import LENGTHS, Flags, hyphenated, known_flags, scan
from shardwright.importers.megatron.model import read_model
from shardwright.importers.megatron.plan import plan_of_flags, unpriced
from shardwright.importers.shell.read import ShellScript
from shardwright.importers.shell.unknown import shown
from shardwright.plans.check import check
from shardwright.plans.mesh import Host, hosts
from shardwright.plans.plan import Plan, Replica
from shardwright.records import record
from shardwright.rows import holding
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model

OTHER_PROGRAMS = re.compile(r"(?:.*/)?\w*(?:t5|bert|vision|retro|ict|biencoder|mamba|vlm|mimo|realm|dino)\w*\.py")
DECISIVE = ("--micro-batch-size", "--tensor-model-parallel-size", "--num-layers", "--seq-length")
DEFAULTS_SHOWN = 12
NO_SHARES: Mapping[str, int] = MappingProxyType({})
NO_TRAINING = "contains no Megatron-LM argument, nor those of another trainer that is read"
DECIDED_BY_DEFAULT = (
    "--use-distributed-optimizer",
    "--overlap-grad-reduce",
    "--cross-entropy-loss-fusion",
    "--grad-reduce-in-bf16",
    "--use-precision-aware-optimizer",
    "--moe-token-dispatcher-type",
)
ORDER = re.compile(r"^# Machines by NODE_RANK: (?P<runs>.+)\.$", re.MULTILINE)
RUN = re.compile(r"(?P<first>\d{1,6})(?: to (?P<last>\d{1,6}))? (?P<gpu>\S+)")
EXAMPLE = "# Machines by NODE_RANK: 0 to 3 H100-SXM; 4 to 11 A100-SXM-80."


@record(kw_only=False)
class Reading:
    """A plan read from what a user runs. `notes` are what had to be assumed, `ignored` flags that move nothing,
    `uncounted` flags that move time or memory and are not modelled."""

    plan: Plan
    notes: tuple[str, ...]
    ignored: tuple[str, ...]
    uncounted: tuple[str, ...] = ()


def training_of(launches: tuple[Launch, ...], name: str) -> Launch:
    """Return the launch of a script that trains: the only one that says anything of a plan. Raises SpecError for none,
    and for several that differ."""
    training = [launch for launch in launches if decisive(launch)]
    if not training:
        training = [launch for launch in launches if any(word.startswith("--") for word in launch.arguments)][-1:]
    if not training:
        raise bad(name, NO_TRAINING, "give a launch of Megatron-LM, torchtitan, DeepSpeed, Accelerate or a Trainer")
    said = {tuple(scan(launch.arguments, name, []).given.items()) for launch in training}
    if len(said) > 1:
        raise several(training, name)
    return training[-1]


def several(training: Sequence[Launch], name: str) -> SpecError:
    """Return the error for trainings of one script that differ."""
    lines = ", ".join(str(launch.line) for launch in training)
    return bad(name, f"starts several trainings that differ (lines {lines})", "give a script that starts one")


def decisive(launch: Launch) -> bool:
    """Return whether a launch says something that Megatron-LM alone is told."""
    flags = {word.partition("=")[0].replace("_", "-") for word in launch.arguments}
    return bool(flags & set(DECISIVE)) or "pretrain" in launch.program


def _is_foreign(launch: Launch) -> bool:
    """Return whether most arguments are none of Megatron-LM's, nor of what is made of it."""
    given = {hyphenated(word.partition("=")[0]) for word in launch.arguments if word.startswith("--")}
    return 2 * len(given & known_flags().keys()) < len(given)


def reading_of_launch(
    launch: Launch, script: ShellScript, *, cluster: Cluster, model: Model | None, job: Job | None, name: str
) -> Reading:
    """Return the plan of one launch with Megatron-LM's arguments."""
    program = shown(launch.program).rsplit("/", 1)[-1]
    if OTHER_PROGRAMS.fullmatch(launch.program):
        raise bad(name, f"{program} trains no decoder-only model of text", "give a launch of pretrain_gpt.py")
    if launch.program and _is_foreign(launch):
        hint = "give a launch of a trainer that is read, or describe the plan: `shardwright plan`"
        raise bad(name, f"most arguments of {program} are of no trainer that is read", hint)
    problems: list[Problem] = []
    flags = scan(launch.arguments, name, problems, script.reasons)
    if not flags.given and not problems:
        problems.append(Problem(name, NO_TRAINING, "give the launch command or its arguments"))
    machines, (gpus, left_open) = hosts_of(script, launch, cluster, name), launch.gpus(cluster)
    notes = [*_assumed(script), *left_open]
    return reading_of_flags(
        flags, gpus, notes, problems, cluster=cluster, model=model, job=job, name=name, machines=machines
    )


def reading_of_flags(
    flags: Flags,
    gpus: int | None,
    notes: list[str],
    problems: list[Problem],
    *,
    cluster: Cluster,
    model: Model | None,
    job: Job | None,
    name: str,
    machines: Sequence[Host] = (),
    shares: Mapping[str, int] = NO_SHARES,
) -> Reading:
    """Return the plan of flags that any trainer's configuration was put into, on `gpus` GPUs, on all where nobody says;
    `problems` are those found so far. `machines` are those that a script names of several GPU types, `shares` how many
    GPUs of each type run with equal shares."""
    types = [host.gpu for host in machines] or list(shares)
    gpu = types[0] if types else _one_gpu(cluster, name, problems)
    stated = len(problems)
    model = _model(flags, model, name, problems, notes)
    if stated and len(problems) > stated:
        problems = problems[:stated]  # what is missing follows from what could not be read
    if problems or model is None:
        raise SpecError(*problems)
    world = sum(host.gpus for host in machines) or sum(shares.values()) or _world(gpus, cluster, name)
    plan = plan_of_flags(flags, model, cluster, gpu, world, job, name)
    if len(set(types)) > 1:
        plan = on_hosts(plan, machines, name) if machines else _in_shares(plan, shares, name)
    plan = _without_usual(plan)
    problems += [Problem(f"{name}: {fault.path}", fault.message, fault.hint) for fault in check(plan)]
    reject(problems)
    uncounted = (*flags.uncounted, *unpriced(flags, plan.job, plan.optimizer))
    return Reading(plan, (*notes, *_notes(flags, gpus, plan, world)), flags.ignored, uncounted)


def _in_shares(plan: Plan, shares: Mapping[str, int], name: str) -> Plan:
    """Return a plan of one type on GPUs of several, each with the same share. Raises SpecError where a replica would
    stand on GPUs of two types."""
    (replica,) = plan.replicas
    (stage, *more) = replica.stages
    if more or any(count % stage.gpus for count in shares.values()):
        hint = "give a cluster of one type, or replicas that fit in the GPUs of each"
        raise bad(name, "a replica would stand on GPUs of two types", hint)
    replicas = (replace(replica, count=n // stage.gpus, stages=(replace(stage, gpu=gpu),)) for gpu, n in shares.items())
    return replace(plan, replicas=tuple(replicas))


def _without_usual(plan: Plan) -> Plan:
    """Return the plan without a dispatcher where it is the one that it would be exported with."""
    usual = replace(plan, job=replace(plan.job, options=replace(plan.job.options, dispatcher=None)))
    return usual if plan.job.options.dispatcher == dispatcher_of_plan(usual) else plan


def _one_gpu(cluster: Cluster, name: str, problems: list[Problem]) -> str:
    types = sorted({pool.gpu.name for pool in cluster.pools})
    if len(types) == 1:
        return types[0]
    message = (
        f"the arguments do not say which machine has which rank, and the cluster has {', '.join(types) or 'no GPU'}"
    )
    hint = f"give a cluster of the type that the arguments are for, or name the machines in the script: {EXAMPLE}"
    problems.append(Problem(name, message, hint))
    return ""


def _model(flags: Flags, model: Model | None, name: str, problems: list[Problem], notes: list[str]) -> Model | None:
    """The model of the arguments, or the given one, where they do not contradict it."""
    if model is None and flags["--use-checkpoint-args"]:
        place = f"{name}: --use-checkpoint-args"
        problems.append(Problem(place, "the model is in a checkpoint", "name the model (--model)"))
        return None
    if model is None and (apart := [flag for flag in BESIDE_A_MODEL if flags[flag]]):
        message = f"{BESIDE_A_MODEL[apart[0]][0]} are not described by arguments alone"
        problems.append(Problem(f"{name}: {apart[0]}", message, "name the model (--model)"))
        return None
    if model is None:
        return read_model(flags, name, problems, notes)
    for flag, (words, of_kind) in BESIDE_A_MODEL.items():
        if flags[flag] and not any(map(of_kind, model.kinds)):
            message = f"is for {words}, and the model {model.name} has none"
            problems.append(Problem(f"{name}: {flag}", message, "name the model that the arguments are for"))
    pattern = flags["--hybrid-layer-pattern"]
    if pattern is not None and by_pattern(model) and pattern.replace("|", "") != letters_of(model):
        message = f"is not that of {model.name}"
        problems.append(Problem(f"{name}: --hybrid-layer-pattern", message, "name the model that it is of"))
    stated = {
        "--num-layers": len(model.layers),
        "--hidden-size": model.hidden,
        "--num-attention-heads": max((attention.heads for attention in model.attentions), default=model.max_heads),
    }
    for flag, value in stated.items():
        if flag in flags.given and flags[flag] != value:
            message = f"is {flags[flag]}, but the model {model.name} has {value}"
            problems.append(Problem(f"{name}: {flag}", message, "name the model that the arguments are for"))
    return model


def _world(gpus: int | None, cluster: Cluster, name: str) -> int:
    """GPUs of the run: what the launcher is told, else all of the cluster."""
    world = gpus or cluster.gpus
    if world > cluster.gpus:
        hint = "give a larger cluster, or the launch of a smaller run"
        raise bad(name, f"the launcher starts {world} processes, the cluster has {cluster.gpus} GPUs", hint)
    return world


def _assumed(script: ShellScript) -> list[str]:
    """Say which variables of the environment were taken to be unset, and with which defaults."""
    defaults = [f"{name}={shown(value)}" for name, value in script.assumed.items() if value and not name.isdigit()]
    if not defaults:
        return []
    more = f" and {len(defaults) - DEFAULTS_SHOWN} more" if len(defaults) > DEFAULTS_SHOWN else ""
    shown_first = ", ".join(defaults[:DEFAULTS_SHOWN])
    return [
        f"the script's defaults are taken where the environment decides: {shown_first}{more} (others: --env NAME=value)"
    ]


def _defaults(flags: Flags, plan: Plan) -> Iterator[str]:
    """Yield the defaults that move the price of a plan and that its text leaves to Megatron-LM."""
    if plan.job.framework != "megatron":
        return
    experts = plan.model.has_experts
    for flag in DECIDED_BY_DEFAULT:
        if flag not in flags.given and (experts or not flag.startswith("--moe-")):
            yield f"{flag} {flags[flag] or 'off'}"


def _notes(flags: Flags, gpus: int | None, plan: Plan, world: int) -> tuple[str, ...]:
    there, defaults = plan.cluster.gpus, ", ".join(_defaults(flags, plan))
    start, step, samples = (*(flags["--rampup-batch-size"] or "").split(), "?", "?", "?")[:3]
    return holding(
        (gpus is None, f"the text does not say how many GPUs run; those of the cluster are assumed ({world})"),
        (gpus is not None and world < there, f"{world} of the cluster's {there} GPUs are used"),
        (not any(flag in flags.given for flag in LENGTHS), "the text does not say how long the run is"),
        (defaults, f"Megatron-LM's defaults are taken where nothing is said: {defaults}"),
        (
            plan.job.precision == "fp32" and plan.job.framework == "megatron",
            "neither --bf16 nor --fp16 is said: fp32 is priced, Megatron-LM's default",
        ),
        (
            flags["--rampup-batch-size"],
            f"the batch grows from {start} by {step} over {samples} samples; the final one is priced",
        ),
        (
            flags["--sequence-parallel"] and flags["--tensor-model-parallel-size"] == 1,
            "--sequence-parallel has no effect without tensor parallelism",
        ),
    )


def hosts_of(script: ShellScript, launch: Launch, cluster: Cluster, name: str) -> tuple[Host, ...]:
    """Return the machines that a script names, in the order of their ranks; none where it names none. Raises SpecError
    for a line that cannot be read, and for machines that the cluster has not."""
    line = ORDER.search("\n".join((script.text, *script.called)))
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
    per_node = launch.processes_per_node if isinstance(launch.processes_per_node, int) else None
    if len(counts) == len(types) and all(count.isdigit() for count in counts):
        return tuple(Host(gpu=gpu, gpus=int(count)) for gpu, count in zip(types, counts, strict=True))
    return tuple(Host(gpu=gpu, gpus=per_node or sizes[gpu]) for gpu in types)


def on_hosts(plan: Plan, machines: Sequence[Host], name: str) -> Plan:
    """Return a plan of one type, a mesh of ranks, on machines of several. Raises SpecError where a stage would stand on
    two types, or another order of machines runs it."""
    (replica,) = plan.replicas
    ranks = [host.gpu for host in machines for _ in range(host.gpus)]
    size, depth = replica.stages[0].gpus, len(replica.stages)
    together = plan.rank_order == "tp-cp-ep-pp-dp"

    def types(copy: int) -> tuple[str, ...]:
        firsts = [stage + depth * copy if together else copy + replica.count * stage for stage in range(depth)]
        kinds = [set(ranks[size * first : size * (first + 1)]) for first in firsts]
        if any(len(kind) != 1 for kind in kinds):
            raise bad(name, "a stage would stand on GPUs of two types", "order the machines by the stages they hold")
        return tuple(gpu for (gpu,) in kinds)

    replicas: list[Replica] = []
    for copy_types, group in groupby(types(copy) for copy in range(replica.count)):
        stages = tuple(replace(stage, gpu=gpu) for stage, gpu in zip(replica.stages, copy_types, strict=True))
        replicas.append(replace(replica, count=len(list(group)), stages=stages))
    seated = replace(plan, replicas=tuple(replicas))
    if hosts(seated) != tuple(machines):
        hint = "order the machines as `shardwright export` does"
        raise bad(name, "no plan puts its stages on the machines in this order", hint)
    return seated
