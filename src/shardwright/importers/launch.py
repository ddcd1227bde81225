"""`evaluate --launch`: a plan from a file that starts training, whatever trainer it starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.errors import Problem, SpecError, bad
from shardwright.exporters.torchtitan.models import registered
from shardwright.importers.launches import Launch, launches
from shardwright.importers.megatron.flags import scan
from shardwright.importers.megatron.read import Reading, reading_of_flags, reading_of_launch, training_of
from shardwright.importers.python_values import COMPUTED, PythonValues, python_values
from shardwright.importers.python_values import Path as Fields
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
from shardwright.importers.torchtitan import fields_of_python, model_told, torchtitan_settings
from shardwright.importers.trainers import (
    TrainerFields,
    TrainerSettings,
    accelerate_settings,
    deepspeed_settings,
    fsdp_of_trainer,
)
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.read.presets import find_preset, preset_model, preset_names
from shardwright.spec.text.lines import sought
from shardwright.spec.text.reading import parsed, read_text

TORCHTITAN = ("torchtitan.train", "torchtitan.experiments.train", "torchtitan/train.py")
CONFIGURATIONS = (".json", ".yaml", ".yml", ".toml", ".py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user says: a file, by its name and folder, and what stands beside it. `files` are those that the script
    writes, `problems` what was found wrong so far."""

    cluster: Cluster
    model: Model | None
    seq_len: int | None
    name: str
    folder: Path
    files: Mapping[str, str]
    problems: list[Problem]

    def fields(self, values: Mapping[Fields, Any]) -> TrainerFields:
        return TrainerFields(values, self.name, self.problems)


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

    Read are scripts that start Megatron-LM and what is made of it, torchtitan, Accelerate, DeepSpeed and Trainers of
    Hugging Face; DeepSpeed's JSON; Accelerate's YAML; YAML of NeMo, Megatron-Bridge and Megatron-LM; recipes of
    Megatron-Bridge; torchtitan's TOML and Python. `arguments` and `environment` are those of a script; for a Python
    file the first argument names the function, further ones (`model.x=1`) override fields, as for YAML. Nothing is
    executed. Raises SpecError with every reason why no plan can be read.
    """
    text, ending = read_text(path), path.suffix.casefold()
    question = Question(
        cluster=cluster, model=model, seq_len=seq_len, name=str(path), folder=path.parent, files={}, problems=[]
    )
    with sought(text, question.name):
        if ending in CONFIGURATIONS:
            return _of_configuration(text, ending, arguments, question)
        script = read_script(text, question.name, arguments=arguments, environment=environment, folder=path.parent)
        return _of_script(script, replace(question, files=script.files))


def _of_script(script: ShellScript, question: Question) -> Reading:
    """Return the plan of what a script starts."""
    found = launches(script)
    for launch in reversed(found):
        if trainer := _trainer(launch):
            return _of_launch(launch, trainer, question)
    job = None if question.seq_len is None else Job(global_batch=1, seq_len=question.seq_len)
    launch, cluster, model = training_of(found, question.name), question.cluster, question.model
    return reading_of_launch(launch, script, cluster=cluster, model=model, job=job, name=question.name)


def _trainer(launch: Launch) -> str:
    """Return which trainer a launch starts that is not Megatron-LM's."""
    given = {word.partition("=")[0].replace("_", "-") for word in launch.arguments}
    if launch.program.endswith(TORCHTITAN) or given & {"--job.config-file", "--module"}:
        return "torchtitan"
    if any(word.startswith("--tensor-model-parallel") for word in given):
        return ""
    if launch.launcher == "accelerate":
        return "accelerate"
    if _deepspeed_file(_trainer_arguments(launch)) is not None:
        return "deepspeed"
    if "--per-device-train-batch-size" in given:
        return "transformers"
    return "nemo" if any(word.startswith("model.") and "=" in word for word in launch.arguments) else ""


def _deepspeed_file(arguments: Mapping[Fields, Any]) -> str | None:
    """Return the configuration of DeepSpeed that a program is told."""
    told = first(arguments, "deepspeed")
    return first(arguments, "deepspeed_config") if told in (None, True) else str(told)


def _of_launch(launch: Launch, trainer: str, question: Question) -> Reading:
    """Return the plan of a launch of another trainer, with the configuration that it names."""
    arguments, gpus = _trainer_arguments(launch), launch.gpus
    if trainer == "torchtitan":
        return _torchtitan(_torchtitan_fields(arguments, question), gpus, question)
    if trainer == "nemo":
        words, strange = arguments_of(overridden({}, launch.arguments), question.name, question.problems)
        return _plan(TrainerSettings(tuple(words), tuple(strange), "megatron"), gpus, question)
    if trainer == "deepspeed":
        fields = _named(str(_deepspeed_file(arguments)), question)
        settings = deepspeed_settings(question.fields(fields), arguments, gpus or question.cluster.gpus)
        return _plan(settings, gpus, question)
    if launch.launcher == "deepspeed":
        hint = "evaluate that configuration, as JSON"
        raise bad(question.name, "the configuration of DeepSpeed is in the program that it starts", hint)
    file = launch.options.get("--config-file")
    fields = _named(file, question) if file else {}
    for switch, kind in (("--use-fsdp", "FSDP"), ("--use-deepspeed", "DEEPSPEED")):
        fields |= {("distributed_type",): kind} if switch in launch.options else {}
    options = {(key.lstrip("-").replace("-", "_"),): literal(value) for key, value in launch.options.items()}
    fields |= {key: value for key, value in options.items() if value not in ("", None)}
    return _accelerate(fields | fsdp_of_trainer(arguments), arguments, gpus, question)


def _trainer_arguments(launch: Launch) -> dict[Fields, Any]:
    """Return `--a.b c` and `--a=b` as fields."""
    found: dict[Fields, Any] = {}
    for word, follower in zip(launch.arguments, [*launch.arguments[1:], "--"], strict=False):
        if word.startswith("--"):
            key, sign, value = word[2:].partition("=")
            text = value if sign else "true" if follower.startswith("--") else follower
            if is_known(text):
                found[tuple(key.replace("-", "_").split("."))] = literal(text)
    return found


def _accelerate(
    fields: dict[Fields, Any], arguments: dict[Fields, Any], gpus: int | None, question: Question
) -> Reading:
    """Return the plan of an Accelerate configuration: where it names a file of DeepSpeed's, of that one."""
    gpus = gpus or first(fields, "num_processes")
    file = first(fields, "deepspeed_config_file")
    if file is None:
        settings = accelerate_settings(question.fields(fields), arguments, gpus or question.cluster.gpus)
    else:
        told = {("mixed_precision",): first(fields, "mixed_precision"), **arguments}
        inner = question.fields(_named(str(file), question))
        settings = deepspeed_settings(inner, told, gpus or question.cluster.gpus)
    return _plan(settings, gpus, question)


def _named(file: str, question: Question) -> dict[Fields, Any]:
    """Return the fields of a JSON, YAML or TOML file that a script writes or that lies beside it. Raises SpecError."""
    text = question.files.get(file)
    if text is None:
        beside = [question.folder / file, question.folder / Path(file).name]
        path = next((path for path in beside if is_known(file) and path.is_file()), None)
        if path is None:
            message = f"{shown(file)}, which the launch names, is not beside it"
            raise bad(question.name, message, "put the file beside the script, or evaluate it itself")
        text = read_text(path)
    return dict(flattened(_document(text, file)))


def _document(text: str, name: str) -> object:
    if name.endswith(".toml"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise bad(name, f"is no TOML: {error}", "correct it") from None
    return parsed(text, name)


def _torchtitan_fields(arguments: dict[Fields, Any], question: Question) -> dict[Fields, Any]:
    file = first(arguments, "config_file")
    if file is not None:
        return _named(str(file), question) | arguments
    module, function = str(first(arguments, "module")), first(arguments, "config")
    path = question.folder / (module.rsplit(".", 1)[-1] + ".py")
    if not path.is_file():
        message = f"the configuration {function} of {module} is in another package"
        raise bad(question.name, message, f"put {path.name} beside the script, or evaluate it itself")
    found = python_values(read_text(path), str(path), str(function) if function else None)
    return fields_of_python(found) | arguments


def _torchtitan(fields: dict[Fields, Any], gpus: int | None, question: Question) -> Reading:
    """Return the plan of torchtitan's fields, whose stages depend on the model."""
    config = question.fields(fields)
    model = question.model or _model_named(model_told(config), question.name)
    settings = torchtitan_settings(config, gpus or question.cluster.gpus, len(model.layers))
    return _plan(settings, gpus, replace(question, model=model))


def _of_configuration(text: str, ending: str, arguments: tuple[str, ...], question: Question) -> Reading:
    """Return the plan of a configuration that no script starts: it runs on the whole cluster."""
    name, every = question.name, question.cluster.gpus
    if ending == ".py":
        return _of_python(text, arguments, question)
    fields = overridden(dict(flattened(_document(text, name))), arguments)
    if ending == ".toml":
        return _torchtitan(fields, None, question)
    if first(fields, "distributed_type") is not None:
        return _accelerate(fields, fields, None, question)
    if any(path[0] in ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size") for path in fields):
        return _plan(deepspeed_settings(question.fields(fields), {}, every), None, question)
    return _of_megatron(fields, None, question)


def _of_python(text: str, arguments: tuple[str, ...], question: Question) -> Reading:
    """Return the plan of a Python file: a configuration of torchtitan, or a recipe of Megatron-Bridge."""
    function = next((word for word in arguments if word.isidentifier()), None)
    found = python_values(text, question.name, function)
    changes = [word for word in arguments if "=" in word]
    if "torchtitan" in text:
        return _torchtitan(overridden(fields_of_python(found), changes), None, question)
    builds = any(called == "_pretrain_common" for called, _ in found.calls)
    converts = any(called.endswith("from_hf_pretrained") for called, _ in found.calls)
    defaults = {**BRIDGE_MODEL, **(BRIDGE_COMMON if builds else {}), **(BRIDGE_EXPERTS if converts else {})}
    fields = overridden(defaults | found.values, changes)
    for called, given in found.calls:
        if called == "get_mixed_precision_config" and given:
            fields[("mixed_precision",)] = given[0]
        elif called.endswith("_mixed") and not given and fields.get(("mixed_precision",)) is COMPUTED:
            fields[("mixed_precision",)] = called
    return _of_megatron(fields, _named_model(found), question)


def _of_megatron(fields: dict[Fields, Any], model: str | None, question: Question) -> Reading:
    """Return the plan of fields that are named as Megatron-LM's arguments are."""
    words, strange = arguments_of(fields, question.name, question.problems)
    nodes, devices = first(fields, "num_nodes", "nnodes"), first(fields, "devices", "gpus_per_node", "nproc_per_node")
    gpus = nodes * devices if isinstance(nodes, int) and isinstance(devices, int) else None
    return _plan(TrainerSettings(tuple(words), tuple(strange), "megatron", model), gpus, question)


def _named_model(found: PythonValues) -> str | None:
    """Return the model that a recipe takes from Hugging Face, by name."""
    for called, arguments in found.calls:
        if called.endswith("from_hf_pretrained") and arguments and isinstance(arguments[0], str):
            return arguments[0]
    return next(
        (value for path, value in found.values.items() if path[-1] == "hf_path" and isinstance(value, str)), None
    )


def _plan(settings: TrainerSettings, gpus: int | None, question: Question) -> Reading:
    """Return the plan of settings on so many GPUs, on all where nobody says."""
    problems, name = question.problems, question.name
    if problems:
        raise SpecError(*problems)
    model = question.model
    if model is None and (settings.model or settings.framework != "megatron"):
        model = _model_named(settings.model, name)
    job = Job(global_batch=1, seq_len=question.seq_len or 0, framework=settings.framework)
    flags = scan(settings.words, name, problems)
    reading = reading_of_flags(flags, gpus, [], problems, cluster=question.cluster, model=model, job=job, name=name)
    return replace(reading, uncounted=(*reading.uncounted, *settings.uncounted))


def _model_named(told: str | None, name: str) -> Model:
    """Return the preset of a name, or that which a model of torchtitan's registry is. Raises SpecError for none."""
    if told and (preset := find_preset(told)):
        return preset_model(preset)
    for preset in preset_names() if told else ():
        found = registered(preset_model(preset))
        if found is not None and told and found.flavor == told.split()[-1] and found.module in told:
            return preset_model(preset)
    words = f"names {told}, which is not known" if told else "does not describe the model"
    raise bad(name, words, "name the model: --model llama-3.1-8b, or its config.json")
