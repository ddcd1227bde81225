"""Reading of a model: a preset, a Hugging Face `config.json` (file or folder), or a YAML of dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shardwright.errors import bad, suggestion
from shardwright.spec.model import Model
from shardwright.spec.read.config_fields import HIDDEN
from shardwright.spec.read.huggingface import TEXT_CONFIGS, model_of_config
from shardwright.spec.read.model_yaml import model_of_dimensions
from shardwright.spec.read.preprocessor import with_preprocessor
from shardwright.spec.read.presets import find_preset, preset_model, preset_names
from shardwright.spec.text.fields import shown
from shardwright.spec.text.reading import JSON, YAML, document, parse_json, read_text

CONFIG = "config.json"
CONFIG_KEYS = ("model_type", *HIDDEN, *TEXT_CONFIGS)


def load_model(source: str | Path, *, accept_guess: bool = False) -> Model:
    """Return the model that `source` names: a file, a folder with a `config.json`, or else a preset.

    A file's content says what it is: a mapping with `model_type` or `hidden_size` is a Hugging Face config, any other
    one gives dimensions. An unknown family is refused, or with `accept_guess` read by its fields, and `Model.guesses`
    begins with each guess. A config is compared with the index of weights beside
    it, and images are cut as the file of the image processor beside it says. Raises SpecError naming file,
    field and remedy.
    """
    name = str(source)
    path = _file(source)
    if path is None:
        preset = find_preset(name)
        if preset is None:
            short = name if len(name) <= 80 else shown(name)
            raise bad(f"model {short}", "is neither a preset, a file nor a folder", _advice(source))
        return preset_model(preset)
    title = path.parent.resolve().name if path.name == CONFIG else path.stem
    with document(path) as data:
        if not isinstance(data, Mapping):
            raise bad(
                str(path), f"expected a mapping, got {shown(data)}", "give a config.json, or a YAML of dimensions"
            )
        if not any(key in data for key in CONFIG_KEYS):
            return model_of_dimensions(data, str(path), title=title or None)
        model = model_of_config(data, str(path), title=title or None, accept_guess=accept_guess)
        model = with_preprocessor(model, path.parent)
    open_question = weights_checked(model, data, path.parent)
    return model if open_question is None else replace(model, assumed=(*model.assumed, open_question))


def _file(source: str | Path) -> Path | None:
    """Return the file to read, or None where `source` can only be a preset."""
    path = Path(source)
    try:
        if path.is_dir() and (path / CONFIG).is_file():
            return path / CONFIG
        is_folder, exists = path.is_dir(), path.exists()
    except OSError:  # a name that no file can have
        return None
    if is_folder and str(source) and find_preset(str(source)) is None:
        raise bad(str(source), f"the folder has no {CONFIG}", "give the folder of a Hugging Face model")
    is_file = exists or path.suffix.casefold() in (JSON, *YAML)
    return path if is_file and not is_folder else None


def _advice(source: str | Path) -> str:
    name = str(source)
    if not name.strip():
        return "give the name of a preset, a config.json or a YAML of dimensions"
    return suggestion(name.rsplit("/", 1)[-1], preset_names())


INDEX = "model.safetensors.index.json"
TOLERANCE = 0.02
TOWERS = ("text_config", "llm_config", "language_config", "vision_config", "audio_config", "vq_config")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def weights_checked(model: Model, config: Mapping[str, object], folder: Path) -> str | None:
    """Return what could not be compared, in words; None where the index agrees with `model` or there is none.

    The index gives the bytes of all tensors (`metadata.total_size`), the config their type (`dtype`, `torch_dtype`).
    Raises SpecError where they differ by more than 2 %. Layers that predict further tokens may be in the files or not.
    """
    path = folder / INDEX
    if not path.is_file():
        return None
    index = parse_json(read_text(path), str(path))
    metadata = index.get("metadata") if isinstance(index, Mapping) else None
    size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    width = BYTES.get(str(config.get("dtype") or config.get("torch_dtype")))
    if not isinstance(size, int) or isinstance(size, bool) or size < 1 or width is None:
        return f"{INDEX} is not compared: it has no total_size, or the config no dtype"
    unread = not model.towers and any(name in config for name in TOWERS)
    if config.get("quantization_config") is not None or unread:
        return f"{INDEX} is not compared: the weights are quantized, or those of more than a text model"
    published = size / width
    predicted = model.mtp_layers * (
        model.dense_layer_parameters(model.layers[-1]) + model.expert_layer_parameters(model.layers[-1])
    )
    counts = (model.parameters, model.parameters + predicted)
    if all(abs(count / published - 1) > TOLERANCE for count in counts):
        raise bad(
            str(path),
            f"has {published:,.0f} parameters, the config read as {model.family} gives {model.parameters:,}",
            "the architecture is not as it was read: give a YAML of dimensions",
        )
    return None
