"""`evaluate --launch`: a plan from a file that starts training, whatever trainer it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.errors import bad
from shardwright.importers.configurations import deepspeed_file, of_configuration, of_torchtitan, of_trainer
from shardwright.importers.launches import Launch, launches
from shardwright.importers.megatron.read import Reading, reading_of_launch, training_of
from shardwright.importers.python_values import Path as Fields
from shardwright.importers.python_values import python_values
from shardwright.importers.question import Question, document, named, planned
from shardwright.importers.settings import arguments_of, first, flattened, literal, overridden
from shardwright.importers.shell.read import ShellScript, read_script
from shardwright.importers.shell.unknown import is_known
from shardwright.importers.torchtitan import fields_of_python
from shardwright.importers.trainers import TrainerSettings
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.text.lines import sought
from shardwright.spec.text.reading import YAML, read_text

TORCHTITAN = ("torchtitan.train", "torchtitan.experiments.train", "torchtitan/train.py")
MEGATRON = {"--num-layers", "--num-attention-heads"}  # which no other trainer is told on its command line
CONFIGURATIONS = (".json", *YAML, ".toml", ".py")


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
    Hugging Face; what a SkyPilot task runs; DeepSpeed's JSON; Accelerate's YAML; arguments of a Trainer in either; YAML
    of NeMo, Megatron-Bridge and Megatron-LM; recipes of Megatron-Bridge; torchtitan's TOML and Python. `arguments` and
    `environment` are those of a script; for a Python file the first argument names the function, further ones
    (`model.x=1`) override fields, as for YAML. Nothing is executed. Raises SpecError with every reason why no plan can
    be read.
    """
    text, ending = read_text(path), path.suffix.casefold()
    question = Question(
        cluster=cluster, model=model, seq_len=seq_len, name=str(path), folder=path.parent, files={}, problems=[]
    )
    with sought(text, question.name):
        task = _sky_task(text, question.name) if ending in YAML else None
        if ending in CONFIGURATIONS and task is None:
            return of_configuration(text, ending, arguments, question)
        lines, own = task or (text, {})
        around = {**own, **(environment or {})}
        script = read_script(lines, question.name, arguments=arguments, environment=around, folder=path.parent)
        return _of_script(script, replace(question, files=script.files))


def _sky_task(text: str, name: str) -> tuple[str, dict[str, str]] | None:
    """Return what a task of SkyPilot runs, with the environment that it has there; None for any other YAML."""
    fields = dict(flattened(document(text, name)))
    run = fields.get(("run",))
    if not isinstance(run, str):
        return None
    told = {path[1]: str(value) for path, value in fields.items() if path[0] == "envs" and value is not None}
    gpus = next((str(value) for path, value in fields.items() if path[:2] == ("resources", "accelerators")), "")
    sizes = {"NUM_NODES": fields.get(("num_nodes",), 1), "NUM_GPUS_PER_NODE": gpus.partition(":")[2] or gpus}
    count = {f"SKYPILOT_{key}": str(value) for key, value in sizes.items() if str(value).isdigit()}
    return run, count | told


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
    if given & MEGATRON or any(word.startswith("--tensor-model-parallel") for word in given):
        return ""
    if launch.launcher == "accelerate":
        return "accelerate"
    if deepspeed_file(_trainer_arguments(launch)) is not None or "--per-device-train-batch-size" in given:
        return "transformers"
    return "nemo" if any(word.startswith("model.") and "=" in word for word in launch.arguments) else ""


def _of_launch(launch: Launch, trainer: str, question: Question) -> Reading:
    """Return the plan of a launch of another trainer, with the configuration that it names."""
    arguments, gpus = _trainer_arguments(launch), launch.gpus
    if trainer == "torchtitan":
        return of_torchtitan(_torchtitan_fields(arguments, question), gpus, question)
    if trainer == "nemo":
        words, strange = arguments_of(overridden({}, launch.arguments), question.name, question.problems)
        return planned(TrainerSettings(tuple(words), tuple(strange), "megatron"), gpus, question)
    if launch.launcher == "deepspeed" and deepspeed_file(arguments) is None:
        hint = "evaluate that configuration, as JSON"
        raise bad(question.name, "the configuration of DeepSpeed is in the program that it starts", hint)
    file = launch.options.get("--config-file")
    fields = named(file, question) if file else {}
    for switch, kind in (("--use-fsdp", "FSDP"), ("--use-deepspeed", "DEEPSPEED")):
        fields |= {("distributed_type",): kind} if switch in launch.options else {}
    for key, value in launch.options.items():
        if value:
            fields[(key.lstrip("-").replace("-", "_"),)] = literal(value) if is_known(value) else None
    return of_trainer(fields, arguments, gpus, question)


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


def _torchtitan_fields(arguments: dict[Fields, Any], question: Question) -> dict[Fields, Any]:
    file = first(arguments, "config_file")
    if file is not None:
        return named(str(file), question) | arguments
    module, function = str(first(arguments, "module")), first(arguments, "config")
    path = question.folder / (module.rsplit(".", 1)[-1] + ".py")
    if not path.is_file():
        message = f"the configuration {function} of {module} is in another package"
        raise bad(question.name, message, f"put {path.name} beside the script, or evaluate it itself")
    found = python_values(read_text(path), str(path), str(function) if function else None)
    return fields_of_python(found) | arguments
