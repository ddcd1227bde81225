"""Plans from configurations of trainers, and from what a launch says of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright.errors import bad
from shardwright.importers.megatron.read import DECISIVE, Reading
from shardwright.importers.python_values import COMPUTED, PythonValues, python_values
from shardwright.importers.python_values import Path as Fields
from shardwright.importers.question import Question, document, model_named, named, planned
from shardwright.importers.settings import (
    BRIDGE_COMMON,
    BRIDGE_EXPERTS,
    BRIDGE_MODEL,
    arguments_of,
    first,
    flattened,
    overridden,
)
from shardwright.importers.torchtitan import fields_of_python, model_told, torchtitan_settings
from shardwright.importers.trainers import TrainerSettings, accelerate_settings, deepspeed_settings, fsdp_of_trainer


def of_configuration(text: str, ending: str, arguments: tuple[str, ...], question: Question) -> Reading:
    """Return the plan of a configuration that no script starts: it runs on the whole cluster."""
    if ending == ".py":
        return _of_python(text, arguments, question)
    fields = overridden(dict(flattened(document(text, question.name))), arguments)
    if ending == ".toml":
        return of_torchtitan(fields, None, question)
    if first(fields, "distributed_type", "per_device_train_batch_size") is not None:
        return of_trainer(fields, fields, None, question)
    if any(path[0] in ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size") for path in fields):
        return planned(deepspeed_settings(question.fields(fields), {}, question.cluster.gpus), None, question)
    return _of_megatron(fields, None, question)


def deepspeed_file(arguments: Mapping[Fields, Any]) -> str | None:
    """Return the configuration of DeepSpeed that a program is told."""
    told = first(arguments, "deepspeed")
    return first(arguments, "deepspeed_config") if told in (None, True) else str(told)


def of_trainer(
    fields: dict[Fields, Any], arguments: dict[Fields, Any], gpus: int | None, question: Question
) -> Reading:
    """Return the plan of a Trainer with its arguments, and of Accelerate's configuration where it has one: where these
    name a file of DeepSpeed's, of that one."""
    gpus = gpus or question.fields(fields).whole("num_processes", 0) or None
    file, every = deepspeed_file(arguments) or first(fields, "deepspeed_config_file"), gpus or question.cluster.gpus
    if file is None:
        settings = accelerate_settings(question.fields(fields | fsdp_of_trainer(arguments)), arguments, every)
    else:
        told = {("mixed_precision",): first(fields, "mixed_precision"), **arguments}
        settings = deepspeed_settings(question.fields(named(str(file), question)), told, every)
    return planned(settings, gpus, question)


def of_torchtitan(fields: dict[Fields, Any], gpus: int | None, question: Question) -> Reading:
    """Return the plan of torchtitan's fields, whose stages depend on the model."""
    config = question.fields(fields)
    model = question.model or model_named(model_told(config), question.name)
    settings = torchtitan_settings(config, gpus or question.cluster.gpus, len(model.layers))
    return planned(settings, gpus, replace(question, model=model))


def _of_python(text: str, arguments: tuple[str, ...], question: Question) -> Reading:
    """Return the plan of a Python file: a configuration of torchtitan, or a recipe of Megatron-Bridge."""
    function = next((word for word in arguments if word.isidentifier()), None)
    found = python_values(text, question.name, function)
    changes = [word for word in arguments if "=" in word]
    if "torchtitan" in text:
        return of_torchtitan(overridden(fields_of_python(found), changes), None, question)
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
    if not question.problems and not model and not set(words) & set(DECISIVE[1:]):
        hint = "give a script, or a configuration of DeepSpeed, Accelerate, torchtitan, NeMo or Megatron-LM"
        raise bad(question.name, "is no configuration of a trainer that is read here", hint)
    nodes, devices = first(fields, "num_nodes", "nnodes"), first(fields, "devices", "gpus_per_node", "nproc_per_node")
    gpus = nodes * devices if isinstance(nodes, int) and isinstance(devices, int) else None
    return planned(TrainerSettings(tuple(words), tuple(strange), "megatron", model), gpus, question)


def _named_model(found: PythonValues) -> str | None:
    """Return the model that a recipe takes from Hugging Face, by name."""
    for called, arguments in found.calls:
        if called.endswith("from_hf_pretrained") and arguments and isinstance(arguments[0], str):
            return arguments[0]
    return next(
        (value for path, value in found.values.items() if path[-1] == "hf_path" and isinstance(value, str)), None
    )
