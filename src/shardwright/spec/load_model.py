"""Reading of a model: a preset, a Hugging Face `config.json` (file or folder), or a YAML of dimensions."""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import bad, suggestion
from shardwright.spec.huggingface import model_of_config
from shardwright.spec.model import Model
from shardwright.spec.model_yaml import model_of_dimensions
from shardwright.spec.presets import find_preset, preset_model, preset_names
from shardwright.spec.reading import parse_json, parse_yaml, read_text

YAML = (".yaml", ".yml")


def load_model(source: str | Path) -> Model:
    """Return the model that `source` names. Raises SpecError naming file, field and remedy."""
    if isinstance(source, str) and find_preset(source) is not None and not Path(source).is_file():
        return preset_model(source)
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise bad(str(path.parent), "the folder has no config.json", "give the folder of a Hugging Face model")
    if path.suffix.casefold() not in (".json", *YAML) and "/" not in str(source) and not path.is_file():
        raise bad(
            f"model {source}", "is neither a preset, a file nor a folder", suggestion(str(source), preset_names())
        )
    text = read_text(path)
    if path.suffix.casefold() in YAML:
        return model_of_dimensions(parse_yaml(text, str(path)), str(path))
    title = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return model_of_config(parse_json(text, str(path)), str(path), title=title)
