"""Plans from configurations of trainers, and from what a launch says of one: what is asked of a file, and the plan of
the settings that were read off it.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from shardwright.cost.compute.efficiency import computes
from shardwright.errors import Problem, bad, reject
from shardwright.exporters.torchtitan.models import registered
from shardwright.importers.adapters import adapter_of, has_liger, merged
from shardwright.importers.fields import TrainerFields, TrainerSettings, job_of
from shardwright.importers.foundry import foundry_settings
from shardwright.importers.megatron.flags import scan
from shardwright.importers.megatron.read import DECISIVE, Reading, reading_of_flags
from shardwright.importers.paths import first, flattened, interpolated, overridden, without
from shardwright.importers.python_values import COMPUTED, PythonValues, python_values
from shardwright.importers.python_values import Path as Fields
from shardwright.importers.recipes import (
    NEMO,
    Recipe,
    model_of_class,
    recipe_of,
    refuse_foreign_base,
    renamed,
    with_defaults,
)
from shardwright.importers.settings import (
    BRIDGE_COMMON,
    BRIDGE_EXPERTS,
    BRIDGE_MODEL,
    NEMO_1,
    TABLES,
    accounted,
    arguments_of,
    key_of,
)
from shardwright.importers.shell.unknown import is_known, shown
from shardwright.importers.torchtitan import (
    degrees_of,
    fields_of_python,
    torchtitan_model,
    torchtitan_settings,
)
from shardwright.importers.torchtitan import renamed as of_later
from shardwright.importers.torchtune import torchtune_settings
from shardwright.importers.trainers import accelerate_settings, deepspeed_settings
from shardwright.records import record
from shardwright.spec.catalog.frameworks import framework_has
from shardwright.spec.cluster import Cluster
from shardwright.spec.images import parts_of
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.preference import Preference, as_trained
from shardwright.spec.read.presets import find_preset, preset_model, preset_names
from shardwright.spec.text.reading import YAML, parsed, read_text

# What fields tell whose configuration a file is, the more special first, and the tables of its keys.
DIALECTS: tuple[tuple[frozenset[str], tuple[str, ...]], ...] = (
    (frozenset(("base_model",)), ("axolotl", "accelerate")),
    (frozenset(("finetuning_type", "cutoff_len")), ("llamafactory", "transformers", "accelerate")),
)
# What tells a file of LLM Foundry or torchtune, and the sections of either that decide nothing.
OWN_FILES = {"foundry": ("device_train_microbatch_size", "global_train_batch_size"), "torchtune": ("_component_",)}
OF_DATA = ("variables", "train_loader", "eval_loader", "callbacks", "loggers", "dataset", "checkpointer", "profiler")
TRAINER = ("transformers", "trl", "accelerate")
TRL = ("trl", "transformers", "accelerate")
# Keys of TRL's, which a file has that no launch gives to another program.
TRLS = frozenset(("packing", "assistant_only_loss", "completion_only_loss", "dataset_mixer", "dataset_mixture"))
STARTED = {"axolotl", "llamafactory"}  # by commands that shard nothing unless the file says so
DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
QUANTISED = re.compile(r"gptq|awq|aqlm|gguf|bnb|-(?:int)?[48]-?bit|-int[48]\b|-fp8\b", re.I)  # in names of checkpoints
# Sections that may be told as JSON.
SECTIONS = ("fsdp_config", "accelerator_config", "liger_kernel_config", "gradient_checkpointing_kwargs")
LEVELS = 4  # of folders above a file, which configurations are written to be started from
CONFIG_NAMES, CONFIG_FOLDERS = ("--config-name", "-cn"), ("--config-path", "--config-dir", "-cp", "-cd")  # of Hydra
NANOTRON = frozenset(("parallelism", "tokens", "model"))
NEOX = frozenset(("pipe_parallel_size", "model_parallel_size"))


def of_configuration(text: str, ending: str, arguments: tuple[str, ...], question: Question) -> Reading:
    """Return the plan of a configuration that no script starts: it runs on the whole cluster."""
    if ending == ".py":
        return of_python(text, arguments, None, question)
    fields = interpolated(overridden(dict(flattened(document(text, question.name))), arguments))
    sections = {path[0] for path in fields}
    if ending == ".toml":
        return of_torchtitan(fields, None, question)
    if sections >= {"replicas", "cluster", "job"}:
        raise bad(question.name, "is a plan file, not a launch", "give it without --launch, as it is")
    others = {"nanotron": sections >= NANOTRON, "GPT-NeoX": {name.replace("-", "_") for name in sections} >= NEOX}
    if other := next((trainer for trainer, there in others.items() if there), None):
        message = f"is a configuration of {other}, which is not read"
        raise bad(question.name, message, "describe the plan in a plan file")
    if sections & set(DEEPSPEED):
        config, trainer_fields = question.fields(fields, "deepspeed"), question.fields({}, *TRAINER)
        return planned(deepspeed_settings(config, trainer_fields, question.cluster.gpus), None, question)
    for trainer, marks in OWN_FILES.items():
        if any(path[-1] in marks for path in fields):
            return of_own_file(trainer, fields, (), None, question)
    keys = TRL if dialect(fields) == TRAINER and TRLS & sections else dialect(fields)
    if keys != TRAINER or first(fields, "distributed_type", "per_device_train_batch_size") is not None:
        return of_trainer(fields, keys, None, question)
    return of_megatron(fields, None, question, NEMO_1 if {"trainer", "model"} <= sections else TABLES)


def of_own_file(
    trainer: str, values: Mapping[Fields, Any], changes: Sequence[str], gpus: int | None, question: Question
) -> Reading:
    """Return the plan of a configuration of LLM Foundry or torchtune. What only data and values for others say is left
    out."""
    fields = interpolated(overridden(values, changes))
    read = {path: value for path, value in fields.items() if path[0] not in OF_DATA or len(path) == 1}
    settings = {"foundry": foundry_settings, "torchtune": torchtune_settings}[trainer]
    return planned(settings(question.fields(read, trainer), gpus or question.cluster.gpus), gpus, question)


def dialect(fields: Mapping[Fields, Any]) -> tuple[str, ...]:
    """Return the tables of the trainer whose keys some fields are."""
    names = {path[0] for path in fields}
    return next((tables for marks, tables in DIALECTS if marks & names), TRAINER)


def of_trainer(
    fields: Mapping[Fields, Any],
    trainers: tuple[str, ...],
    gpus: int | None,
    question: Question,
    *,
    started: bool = False,
) -> Reading:
    """Return the plan of a Trainer's arguments, Accelerate's among them: where they name a file of DeepSpeed's, of that
    one. `started` says that a launch shows how its processes start."""
    if question.preference is not None:
        fields = {("preference",): question.preference.name, **fields}
        trainers = TRL if trainers == TRAINER else trainers
    named_sections = {path: value for key in SECTIONS for path, value in _section(fields, key, question)}
    inline = {path[1:]: value for path, value in fields.items() if path[0] == "deepspeed" and len(path) > 1}
    plain = {path: value for path, value in fields.items() if path[0] != "deepspeed" or len(path) == 1}
    if trainers[0] == "axolotl" and any(
        path[0] == "fsdp_config" and value is not None for path, value in fields.items()
    ):
        plain = {("fsdp",): "full_shard", **plain}  # which it may leave out
    if trainers == TRAINER and first(plain, "lora_r", "lora_rank") is not None and not _has_switch(plain):
        plain = {("use_peft",): True, **plain}
        question.notes.append("a rank of adapters is said, but not that they are trained: they are taken to be")
    if trainers[0] == "axolotl":
        plain = dict(_of_these_gpus(plain, question))
    config = question.fields({**plain, **named_sections}, *trainers)
    gpus = gpus or config.whole("num_processes", 0) or None
    every = gpus or question.cluster.gpus
    file = config.first("deepspeed_config_file") or config.first("deepspeed")
    inline = named(file, question) if isinstance(file, str) else inline
    if (inline or file) and config.first("fsdp"):
        config.report("fsdp", "is said, and so is deepspeed", "write one of them")
    if file and not inline:
        config.report("deepspeed", f"is {file}, which names no configuration", "write the name of its file")
    if inline:
        return planned(deepspeed_settings(question.fields(inline, "deepspeed"), config, every), gpus, question)
    if every > 1 and not started and config.first("distributed_type", "fsdp") in (None, False, ""):
        _unsharded(trainers[0], config)
    return planned(accelerate_settings(config, every), gpus, question)


def _of_these_gpus(fields: Mapping[Fields, Any], question: Question) -> Mapping[Fields, Any]:
    """Return axolotl's fields with fp16 where `bf16: auto`, which it may leave out, meets GPUs without bf16
    (axolotl/utils/config/__init__.py: resolve_dtype)."""
    unable = [pool.gpu.name for pool in question.cluster.pools if not computes(pool.gpu, "bf16")]
    if not unable or first(fields, "bf16") not in (None, "auto") or first(fields, "bfloat16") is True:
        return fields
    remedy = "recent releases of PyTorch say that it has, and emulate it: write fp16: true"
    question.notes.append(f"bf16: auto is read as fp16, as {unable[0]} has no bf16; {remedy}")
    return {("fp16",): True, **without(fields, ("bf16",)), ("bf16",): False}


def _has_switch(fields: Mapping[Fields, Any]) -> bool:
    """Return whether a Trainer's arguments say whether adapters are trained."""
    keys = (key_of(path, TRAINER) for path in fields)
    return any(key is not None and key.means == "use_peft" for key in keys)


def _section(fields: Mapping[Fields, Any], key: str, question: Question) -> Iterator[tuple[Fields, Any]]:
    """Yield the fields of a section that is told by the name of a file, or as JSON."""
    text = fields.get((key,))
    if not isinstance(text, str):
        return
    inline = text.startswith("{")
    if inline or text.endswith((".json", ".yaml", ".yml")):
        yield (key,), None
        values = dict(flattened(document(text, f"{question.name}: {key}"))) if inline else named(text, question)
        yield from (((key, *path), value) for path, value in values.items())


def _unsharded(trainer: str, fields: TrainerFields) -> None:
    """Whether processes share their state is said by the launch, unless a command starts them that never does."""
    if trainer in STARTED:
        return
    message = "is not said, nor is deepspeed: how the processes start decides what they share"
    fields.report("fsdp", message, "give the launch script, or Accelerate's configuration with these arguments")


def of_torchtitan(values: Mapping[Fields, Any], gpus: int | None, question: Question) -> Reading:
    """Return the plan of torchtitan's fields, whose stages depend on the model."""
    config = question.fields(of_later(values), "torchtitan")
    model = question.model or model_named(torchtitan_model(config), question.name)
    gpus = gpus or degrees_of(config)
    settings = torchtitan_settings(config, gpus or question.cluster.gpus, len(model.layers))
    return planned(settings, gpus, replace(question, model=model))


def of_python(text: str, arguments: tuple[str, ...], gpus: int | None, question: Question) -> Reading:
    """Return the plan of a Python file: a configuration of torchtitan, or a recipe of NeMo 2 or Megatron-Bridge. `gpus`
    are those that a launch starts it on."""
    function = next((word for word in arguments if word.isidentifier()), None)
    source = python_values(text, question.name, function)
    changes = [word for word in arguments if "=" in word]
    if "torchtitan" in text:
        fields = fields_of_python(source, question.folder.absolute().name, question.name)
        return of_torchtitan(overridden(fields, changes), gpus, question)
    named_recipe = recipe_of(source, question.name)
    if named_recipe is None:
        refuse_foreign_base(source, question.name)
    if (named_recipe and named_recipe[0] == "nemo") or any(
        origin.startswith(NEMO) for origin in source.imports.values()
    ):
        return _of_nemo(source, named_recipe[1] if named_recipe else None, changes, question)
    builds = any(called == "_pretrain_common" for called, _ in source.calls)
    converts = any(called.endswith("from_hf_pretrained") for called, _ in source.calls)
    defaults = {**BRIDGE_MODEL, **(BRIDGE_COMMON if builds else {}), **(BRIDGE_EXPERTS if converts else {})}
    if named_recipe is not None:
        defaults |= named_recipe[1].values
    fields = overridden(with_defaults(defaults, source.values), changes)
    _take_precision(fields, source)
    model = _named_model(source) or (named_recipe[1].model if named_recipe else None)
    return of_megatron(fields, model, question, gpus=gpus)


def _take_precision(fields: dict[Fields, Any], source: PythonValues) -> None:
    """Take the mixed precision that a call makes by its name."""
    for called, given in source.calls:
        if called == "get_mixed_precision_config" and given:
            fields[("mixed_precision",)] = given[0]
        elif called.endswith("_mixed") and not given and fields.get(("mixed_precision",)) is COMPUTED:
            fields[("mixed_precision",)] = called.rsplit(".", 1)[-1]


def _of_nemo(source: PythonValues, recipe: Recipe | None, changes: Sequence[str], question: Question) -> Reading:
    """Return the plan of a program or recipe of NeMo 2."""
    values = renamed(source.values)
    fields = with_defaults(recipe.values if recipe else {("model", "cross_entropy_loss_fusion"): True}, values)
    fields = renamed(overridden(fields, changes))
    _take_precision(fields, source)
    model = recipe.model if recipe else model_of_class(source)
    return of_megatron(fields, model, question, ("nemo", *TABLES))


def of_nemo_1(arguments: Sequence[str], program: str, gpus: int | None, question: Question) -> Reading:
    """Return the plan of a program of NeMo before recipes: the configuration that Hydra's options name, with
    `key=value` over it."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("-") else [word])]
    options = {key: value for key, value in pairwise(words) if key in (*CONFIG_NAMES, *CONFIG_FOLDERS)}
    name = next((options[key] for key in CONFIG_NAMES if key in options), None)
    fields: dict[Fields, Any] = {}
    if name is None:
        message = f"no configuration is named, and that of {shown(program).rsplit('/', 1)[-1]} is in its package"
        question.notes.append(f"{message}: what is not said is taken as Megatron-LM has it")
    else:
        folder = next((f"{options[key].rstrip('/')}/" for key in CONFIG_FOLDERS if key in options), "")
        fields = named(f"{folder}{name}{'' if name.endswith(YAML) else '.yaml'}", question)
    changes = [word for word in arguments if "=" in word and not word.startswith("-")]
    return of_megatron(interpolated(overridden(fields, changes)), None, question, NEMO_1, gpus)


def of_megatron(
    fields: Mapping[Fields, Any],
    model: str | None,
    question: Question,
    tables: tuple[str, ...] = TABLES,
    gpus: int | None = None,
) -> Reading:
    """Return the plan of fields that are named as Megatron-LM's arguments are."""
    words, strange = arguments_of(fields, question.name, question.problems, tables)
    if not question.problems and not model and not set(words) & set(DECISIVE[1:]):
        hint = "give a script, or a configuration of DeepSpeed, Accelerate, torchtitan, NeMo or Megatron-LM"
        raise bad(question.name, "is no configuration of a trainer that is read here", hint)
    counts = first(fields, "num_nodes", "nnodes"), first(fields, "devices", "gpus_per_node", "nproc_per_node")
    whole = all(isinstance(count, int) and count > 0 for count in counts)  # -1 and auto are all that there are
    gpus = gpus or (math.prod(counts) if whole else None)
    return planned(TrainerSettings(tuple(words), tuple(strange), job_of("megatron"), model), gpus, question)


def _named_model(module: PythonValues) -> str | None:
    """Return the model that a recipe takes from Hugging Face, by name."""
    for called, arguments in module.calls:
        if called.endswith("from_hf_pretrained") and arguments and isinstance(arguments[0], str):
            return arguments[0]
    return next(
        (value for path, value in module.values.items() if path[-1] == "hf_path" and isinstance(value, str)), None
    )


@record
class Question:
    """What the user says: a file, by its name and folder, and what stands beside it. `files` are those that the script
    writes, `gpus` how many of each type run, where it says so, `why` says of its variables why they are not known;
    `problems` are what was found wrong so far, `uncounted` what is not modelled, `notes` what had to be assumed,
    `folders` those of the files that were read."""

    cluster: Cluster
    model: Model | None
    seq_len: int | None
    preference: Preference | None
    name: str
    folder: Path
    files: Mapping[str, str]
    gpus: Mapping[str, int] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def fields(self, values: Mapping[Fields, Any], *trainers: str) -> TrainerFields:
        """Return the fields of a configuration of these trainers that are read; what they say beside is noted."""
        read = accounted(values, trainers, self.name, self.problems, self.why)
        self.uncounted.extend(read.uncounted)
        return TrainerFields(read.values, self.name, self.problems, read.written)


def named(file: str, question: Question) -> dict[Fields, Any]:
    """Return the fields of a JSON, YAML or TOML file that a script writes or that lies beside it, beside a file that
    was read before, or where its name says in a folder above these. Raises SpecError."""
    text = question.files.get(file)
    if text is None:
        folders = (question.folder, *question.folders)
        beside = [folder / name for folder in folders for name in (file, Path(file).name)]
        above = [folder / file for start in folders for folder in [*start.absolute().parents][:LEVELS]]
        path = next((path for path in (*beside, *above) if is_known(file) and path.is_file()), None)
        if path is None:
            message = f"{shown(file)}, which the launch names, is not beside it"
            raise bad(question.name, message, "put the file beside the script, or evaluate it itself")
        text = read_text(path)
        question.folders.append(path.parent)
    return dict(flattened(document(text, file)))


def document(text: str, name: str) -> object:
    """Return what a JSON, YAML or TOML text holds. Raises SpecError where it holds neither."""
    if name.endswith(".toml"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise bad(name, f"is no TOML: {error}", "correct it") from None
    return parsed(text, name)


def planned(settings: TrainerSettings, gpus: int | None, question: Question) -> Reading:
    """Return the plan of settings on so many GPUs, on all where nobody says."""
    problems, name = question.problems, question.name
    reject(problems)
    model = question.model
    described = settings.job.framework == "megatron" or "--num-layers" in settings.words
    if model is None and (settings.model or not described):
        model = model_named(settings.model, name)
    flags = scan(settings.words, name, problems)
    notes, uncounted = [*question.notes, *settings.notes], (*settings.uncounted, *question.uncounted)
    job = replace(settings.job, seq_len=question.seq_len or 0)
    if model is not None:
        model = as_trained(model, job.preference)
        job, unfused = _of_model(settings, job, model, name)
        uncounted = (*uncounted, *unfused)
    several = _shares(question, gpus, job.framework)
    reading = reading_of_flags(
        flags, gpus, notes, problems, cluster=question.cluster, model=model, job=job, name=name, shares=several
    )
    return replace(reading, uncounted=(*reading.uncounted, *uncounted))


def _shares(question: Question, gpus: int | None, framework: str) -> Mapping[str, int]:
    """Return how many GPUs of each type run, where several may: those that the file names or, of the whole cluster, all
    of a framework that gives each the same share."""
    pools, equal = question.cluster.pools, framework_has(framework, "equal_shares")
    if not question.gpus and len(pools) > 1 and equal and gpus in (None, question.cluster.gpus):
        return {pool.gpu.name: pool.gpus for pool in pools}
    return question.gpus


def _of_model(settings: TrainerSettings, job: Job, model: Model, name: str) -> tuple[Job, tuple[str, ...]]:
    """Return the job of settings with what the model decides: the parts that are frozen, beside which matrices adapters
    are, whether its loss has a kernel; and what is not counted of that."""
    if job.freeze:  # LLaMA-Factory calls towers of sound, too, those of vision
        there = [part for part in parts_of(model) if {"audio": "vision"}.get(part, part) in (job.freeze or ())]
        job = replace(job, freeze=tuple(there) or None)
    if settings.peft is not None:
        if settings.model and QUANTISED.search(settings.model):
            hint = "name the plain one, and the bits"
            raise bad(name, f"{settings.model} is quantised already, which is not described", hint)
        job = replace(job, adapter=adapter_of(settings.peft, model, name))
    uncounted = []
    if job.adapter is not None and settings.peft is not None and merged(model, job.adapter):
        words = f"{model.family} has several of these matrices in one, with one adapter"
        uncounted.append(f"{settings.peft.place} ({words})")
    if settings.liger and not has_liger(model, settings.liger):
        uncounted.append(f"use_liger_kernel (Liger's fused loss, which it has not for the family {model.family})")
        job = replace(job, options=replace(job.options, loss=None))
    return job, tuple(uncounted)


def model_named(recipe: str | None, name: str) -> Model:
    """Return the preset of a name, or that which a model of torchtitan's registry is. Raises SpecError for none."""
    if recipe and (preset := find_preset(recipe)):
        return preset_model(preset)
    for preset in preset_names() if recipe else ():
        known = registered(preset_model(preset))
        if known is not None and recipe == f"{known.module} {known.flavor}":
            return preset_model(preset)
    words = f"names {recipe}, which is not known" if recipe else "does not describe the model"
    raise bad(name, words, "name the model: --model llama-3.1-8b, or its config.json")
