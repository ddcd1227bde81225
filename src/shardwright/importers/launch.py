"""`evaluate --launch`: a plan from a file that starts training, whatever trainer it starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import Problem, SpecError, bad
from shardwright.exporters.torchtitan.models import registered
from shardwright.importers.launches import Launch, launches
from shardwright.importers.megatron.flags import scan
from shardwright.importers.megatron.read import reading_of_flags, reading_of_launch, training_of
from shardwright.importers.python_values import COMPUTED, PythonValues, python_values
from shardwright.importers.python_values import Path as Fields
from shardwright.importers.reading import Reading
from shardwright.importers.settings import (
    BRIDGE_COMMON,
    BRIDGE_EXPERTS,
    BRIDGE_MODEL,
    arguments_of,
    first,
    flattened,
    literal,
    overridden,
)
from shardwright.importers.shell.read import ShellScript, read_script
from shardwright.importers.shell.unknown import is_known, shown
from shardwright.importers.trainers import TrainerSettings, accelerate_settings, deepspeed_settings, torchtitan_settings
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.read.presets import find_preset, preset_model, preset_names
from shardwright.spec.text.reading import parse_json, parse_yaml, read_text

TORCHTITAN = ("torchtitan.train", "torchtitan.experiments.train", "torchtitan/train.py", "train.py")
YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user says beside the file."""

    cluster: Cluster
    model: Model | None
    seq_len: int | None
    name: str
    folder: Path


def plan_from_launch(
    path: Path,
    *,
    cluster: Cluster,
    model: Model | None = None,
    seq_len: int | None = None,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Reading:
    """Return the plan that a file starts on `cluster`: a shell script, or the configuration of a trainer.

    Read are scripts that start Megatron-LM and what is made of it, torchtitan, Accelerate and DeepSpeed; DeepSpeed's
    JSON; Accelerate's YAML; YAML of NeMo, Megatron-Bridge and Megatron-LM; recipes of Megatron-Bridge; torchtitan's
    TOML and Python. `arguments` and `environment` are those of a script; for a Python file the first argument names the
    function, further ones (`model.x=1`) override fields, as for YAML. Nothing is executed. Raises SpecError with every
    reason why no plan can be read.
    """
    question = Question(cluster=cluster, model=model, seq_len=seq_len, name=str(path), folder=path.parent)
    text, ending = read_text(path), path.suffix.casefold()
    if ending in (".json", *YAML, ".toml", ".py"):
        return _of_configuration(text, ending, arguments, question)
    script = read_script(text, question.name, arguments=arguments, environment=environment, folder=path.parent)
    found = launches(script)
    other = next((launch for launch in reversed(found) if _trainer(launch)), None)
    if other is not None:
        return _of_launch(other, _trainer(other), script, question)
    launch = training_of(found, question.name)
    job = None if seq_len is None else Job(global_batch=1, seq_len=seq_len)
    return reading_of_launch(launch, script, cluster=cluster, model=model, job=job, name=question.name)


def _trainer(launch: Launch) -> str:
    """Return which trainer a launch starts that is not Megatron-LM's: torchtitan, accelerate, deepspeed or NeMo."""
    given = {word.partition("=")[0] for word in launch.arguments}
    if launch.program.endswith(TORCHTITAN[:3]) or given & {"--job.config_file", "--job.config-file", "--module"}:
        return "torchtitan"
    if any(word.replace("_", "-").startswith("--tensor-model-parallel") for word in given):
        return ""
    if launch.launcher == "accelerate":
        return "accelerate"
    if "--deepspeed" in given and first(_trainer_arguments(launch), "deepspeed") not in (None, True):
        return "deepspeed"
    return "nemo" if any(word.startswith("model.") and "=" in word for word in launch.arguments) else ""


def _of_launch(launch: Launch, trainer: str, script: ShellScript, question: Question) -> Reading:
    """Return the plan of a launch of another trainer, with the configuration that it names."""
    arguments, problems = _trainer_arguments(launch), list[Problem]()
    gpus = launch.gpus or question.cluster.gpus
    name = question.name
    if trainer == "torchtitan":
        fields = _torchtitan_fields(arguments, script, question)
        return _plan(torchtitan_settings(fields, gpus, name, problems), launch, problems, question)
    if trainer == "accelerate":
        file = launch.options.get("--config-file")
        fields = dict(flattened(_named(file, script, question))) if file else {}
        for switch, kind in (("--use-fsdp", "FSDP"), ("--use-deepspeed", "DEEPSPEED")):
            fields |= {("distributed_type",): kind} if switch in launch.options else {}
        options = {(key.lstrip("-").replace("-", "_"),): literal(value) for key, value in launch.options.items()}
        fields |= {key: value for key, value in options.items() if value not in ("", None)}
        gpus = launch.gpus or first(fields, "num_processes") or question.cluster.gpus
        settings = _accelerate(fields, arguments, gpus, script, question, problems)
    elif trainer == "deepspeed":
        fields = dict(flattened(_named(str(first(arguments, "deepspeed")), script, question)))
        settings = deepspeed_settings(fields, arguments, gpus, name, problems)
    else:
        words, strange = arguments_of(overridden({}, launch.arguments), name, problems)
        settings = TrainerSettings(tuple(words), tuple(strange), "megatron", gpus)
    return _plan(settings, launch, problems, question)


def _trainer_arguments(launch: Launch) -> dict[Fields, Any]:
    """Return `--a.b c` and `--a=b` as fields."""
    found: dict[Fields, Any] = {}
    words = list(launch.arguments)
    for place, word in enumerate(words):
        if word.startswith("--"):
            key, sign, value = word[2:].partition("=")
            follower = words[place + 1] if place + 1 < len(words) else "--"
            text = value if sign else "true" if follower.startswith("--") else follower
            if is_known(text):
                found[tuple(key.replace("-", "_").split("."))] = literal(text)
    return found


def _accelerate(
    fields: dict[Fields, Any],
    arguments: dict[Fields, Any],
    gpus: int,
    script: ShellScript | None,
    question: Question,
    problems: list[Problem],
) -> TrainerSettings:
    """Return an Accelerate configuration: where it names a file of DeepSpeed's, that one."""
    file = first(fields, "deepspeed_config_file")
    if file is None:
        return accelerate_settings(fields, arguments, gpus, question.name, problems)
    inner = dict(flattened(_named(str(file), script, question)))
    return deepspeed_settings(inner, arguments, gpus, question.name, problems)


def _named(file: str | None, script: ShellScript | None, question: Question) -> object:
    """Return the content of a JSON, YAML or TOML file that a script writes or that lies beside it. Raises SpecError."""
    text = None if file is None or script is None else script.files.get(file)
    beside = [question.folder / str(file), question.folder / Path(str(file)).name]
    path = next((path for path in beside if is_known(str(file)) and path.is_file()), None)
    if text is None and path is None:
        message = f"{shown(str(file))}, which the launch names, is not beside it"
        raise bad(question.name, message, "put the file beside the script, or evaluate it itself")
    text = read_text(path) if text is None and path else text or ""
    return _parsed(text, str(file))


def _parsed(text: str, name: str) -> object:
    if name.endswith(".toml"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise bad(name, f"is no TOML: {error}", "correct it") from None
    return parse_json(text, name) if text.lstrip().startswith("{") else parse_yaml(text, name)


def _torchtitan_fields(arguments: dict[Fields, Any], script: ShellScript, question: Question) -> dict[Fields, Any]:
    file = first(arguments, "config_file")
    if file is not None:
        return dict(flattened(_named(str(file), script, question))) | arguments
    module, function = str(first(arguments, "module")), first(arguments, "config")
    path = question.folder / (module.rsplit(".", 1)[-1] + ".py")
    if not path.is_file():
        message = f"the configuration {function} of {module} is in another package"
        raise bad(question.name, message, f"put {path.name} beside the script, or evaluate it itself")
    found = python_values(read_text(path), str(path), str(function) if function else None)
    return _titan_of_python(found) | arguments


def _titan_of_python(found: PythonValues) -> dict[Fields, Any]:
    """Return the fields of a torchtitan configuration: the policy of recomputation and the model are calls in it."""
    fields = dict(found.values)
    for called, arguments in found.calls:
        if called.split(".")[0] in ("FullAC", "SelectiveAC"):
            fields[("activation_checkpoint",)] = called.split(".")[0]
        if called == "model_registry" and arguments:
            fields[("flavor",)] = arguments[0]
            fields[("family",)] = found.imports.get(called, "").rsplit(".", 1)[-1]
    return fields


def _of_configuration(text: str, ending: str, arguments: tuple[str, ...], question: Question) -> Reading:
    """Return the plan of a configuration that no script starts: it runs on the whole cluster."""
    problems, gpus, name = list[Problem](), question.cluster.gpus, question.name
    if ending == ".py":
        function = next((word for word in arguments if word.isidentifier()), None)
        found = python_values(text, name, function)
        builds = any(called == "_pretrain_common" for called, _ in found.calls)
        converts = any(called.endswith("from_hf_pretrained") for called, _ in found.calls)
        defaults = {**BRIDGE_MODEL, **(BRIDGE_COMMON if builds else {}), **(BRIDGE_EXPERTS if converts else {})}
        fields = defaults | found.values
        fields = overridden(fields, (word for word in arguments if "=" in word))
        if "torchtitan" in text:
            fields = _titan_of_python(found) | fields
            return _plan(torchtitan_settings(fields, gpus, name, problems), None, problems, question)
        for called, given in found.calls:
            if called == "get_mixed_precision_config" and given:
                fields[("mixed_precision",)] = given[0]
            elif called.endswith("_mixed") and not given and fields.get(("mixed_precision",)) is COMPUTED:
                fields[("mixed_precision",)] = called
        return _plan(_of_fields(fields, name, problems, _named_model(found)), None, problems, question)
    fields = overridden(dict(flattened(_parsed(text, name))), arguments)
    if ending == ".toml":
        return _plan(torchtitan_settings(fields, gpus, name, problems), None, problems, question)
    if first(fields, "distributed_type") is not None:
        gpus = first(fields, "num_processes") or gpus
        return _plan(_accelerate(fields, fields, gpus, None, question, problems), None, problems, question)
    if any(path[0] in ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size") for path in fields):
        return _plan(deepspeed_settings(fields, {}, gpus, name, problems), None, problems, question)
    return _plan(_of_fields(fields, name, problems, None), None, problems, question)


def _of_fields(fields: dict[Fields, Any], name: str, problems: list[Problem], model: str | None) -> TrainerSettings:
    """Return fields that are named as Megatron-LM's arguments are."""
    words, strange = arguments_of(fields, name, problems)
    nodes, devices = first(fields, "num_nodes", "nnodes"), first(fields, "devices", "gpus_per_node", "nproc_per_node")
    gpus = nodes * devices if isinstance(nodes, int) and isinstance(devices, int) else None
    return TrainerSettings(tuple(words), tuple(strange), "megatron", gpus, model)


def _named_model(found: PythonValues) -> str | None:
    """Return the model that a recipe takes from Hugging Face, by name."""
    for called, arguments in found.calls:
        if called.endswith("from_hf_pretrained") and arguments and isinstance(arguments[0], str):
            return arguments[0]
    return next(
        (value for path, value in found.values.items() if path[-1] == "hf_path" and isinstance(value, str)), None
    )


def _plan(settings: TrainerSettings, launch: Launch | None, problems: list[Problem], question: Question) -> Reading:
    """Return the plan of settings."""
    if problems:
        raise SpecError(*problems)
    model = question.model or _model_of(settings, question.name)
    job = Job(global_batch=1, seq_len=question.seq_len or 0, framework=settings.framework)
    flags = scan(settings.words, question.name, problems)
    world = Launch(
        launcher="", program="", arguments=(), nodes=None, processes_per_node=None, processes=settings.gpus,
        options={}, unread=(), line=1,
    )  # fmt: skip
    started = launch if launch is not None and launch.gpus else world
    reading = reading_of_flags(
        flags, started, [], problems, cluster=question.cluster, model=model, job=job, name=question.name
    )
    return Reading(reading.plan, reading.notes, reading.ignored, (*reading.uncounted, *settings.uncounted))


def _model_of(settings: TrainerSettings, name: str) -> Model | None:
    """Return the model that a configuration names; None where its own fields describe one."""
    if settings.model and (preset := find_preset(settings.model)):
        return preset_model(preset)
    if settings.framework == "torchtitan" and settings.model:
        wanted = settings.model.split()[-1]
        for preset in preset_names():
            found = registered(preset_model(preset))
            if found is not None and found.flavor == wanted and found.module in settings.model:
                return preset_model(preset)
    if settings.framework != "megatron" or settings.model:
        told = f"names {settings.model}, which is not known" if settings.model else "does not describe the model"
        raise bad(name, told, "name the model: --model llama-3.1-8b, or its config.json")
    return None
