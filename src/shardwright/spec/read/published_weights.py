"""A model's parameter count against the weights that lie beside its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardwright.errors import bad
from shardwright.spec.model import Model
from shardwright.spec.text.reading import parse_json, read_text

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
    if config.get("quantization_config") is not None or any(name in config for name in TOWERS):
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
