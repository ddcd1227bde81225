"""What is asked of a file, and the plan of the settings that were read off it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardwright.errors import Problem, SpecError, bad
from shardwright.exporters.torchtitan.models import registered
from shardwright.importers.keys import accounted
from shardwright.importers.megatron.flags import scan
from shardwright.importers.megatron.read import Reading, reading_of_flags
from shardwright.importers.python_values import Path as Fields
from shardwright.importers.settings import flattened
from shardwright.importers.shell.unknown import is_known, shown
from shardwright.importers.trainers import TrainerFields, TrainerSettings
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.read.presets import find_preset, preset_model, preset_names
from shardwright.spec.text.reading import parsed, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user says: a file, by its name and folder, and what stands beside it. `files` are those that the script
    writes, `why` says of its variables why they are not known; `problems` are what was found wrong so far, `uncounted`
    what is not modelled, `notes` what had to be assumed."""

    cluster: Cluster
    model: Model | None
    seq_len: int | None
    name: str
    folder: Path
    files: Mapping[str, str]
    why: Mapping[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fields(self, values: Mapping[Fields, Any], *trainers: str) -> TrainerFields:
        """Return the fields of a configuration of these trainers that are read; what they say beside is noted."""
        read = accounted(values, trainers, self.name, self.problems, self.why)
        self.uncounted.extend(read.uncounted)
        return TrainerFields(read.values, self.name, self.problems)


def named(file: str, question: Question) -> dict[Fields, Any]:
    """Return the fields of a JSON, YAML or TOML file that a script writes or that lies beside it. Raises SpecError."""
    text = question.files.get(file)
    if text is None:
        beside = [question.folder / file, question.folder / Path(file).name]
        path = next((path for path in beside if is_known(file) and path.is_file()), None)
        if path is None:
            message = f"{shown(file)}, which the launch names, is not beside it"
            raise bad(question.name, message, "put the file beside the script, or evaluate it itself")
        text = read_text(path)
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
    if problems:
        raise SpecError(*problems)
    model = question.model
    described = settings.framework == "megatron" or "--num-layers" in settings.words
    if model is None and (settings.model or not described):
        model = model_named(settings.model, name)
    job = Job(global_batch=1, seq_len=question.seq_len or 0, framework=settings.framework)
    flags = scan(settings.words, name, problems)
    notes = [*question.notes, *settings.notes]
    reading = reading_of_flags(flags, gpus, notes, problems, cluster=question.cluster, model=model, job=job, name=name)
    return replace(reading, uncounted=(*reading.uncounted, *settings.uncounted, *question.uncounted))


def model_named(told: str | None, name: str) -> Model:
    """Return the preset of a name, or that which a model of torchtitan's registry is. Raises SpecError for none."""
    if told and (preset := find_preset(told)):
        return preset_model(preset)
    for preset in preset_names() if told else ():
        found = registered(preset_model(preset))
        if found is not None and told and found.flavor == told.split()[-1] and found.module in told:
            return preset_model(preset)
    words = f"names {told}, which is not known" if told else "does not describe the model"
    raise bad(name, words, "name the model: --model llama-3.1-8b, or its config.json")
