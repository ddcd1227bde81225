"""Which safetensors files a folder of Hugging Face weights has, and which weights they are. Needs no PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import xxhash
from safetensors import SafetensorError, safe_open

from shardwright.errors import bad

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
ADAPTERS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"  # as PEFT names them
SAMPLE_BYTES, SAMPLES = 1 << 16, 64


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a folder, one or several with an index. Raises SpecError where the index is none."""
    index = folder / INDEX
    if not index.exists():
        return [folder / SINGLE]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise bad(str(index), "is no index of safetensors files", "fetch or write it anew") from None
    return [folder / str(name) for name in names]


def weights_fingerprint(folder: Path) -> str:
    """Return a hash of the sizes of all files and of blocks spread over each. Raises SpecError where one is missing or
    cut off."""
    return _fingerprint(weight_files(folder))


def adapters_fingerprint(folder: Path) -> str:
    """Return the same of the adapters in a folder."""
    return _fingerprint([folder / ADAPTERS])


def _fingerprint(paths: Iterable[Path]) -> str:
    content = xxhash.xxh3_128()
    for path in paths:
        try:
            with safe_open(path, framework="np"), path.open("rb") as file:
                size = path.stat().st_size
                content.update(f"{path.name} {size}".encode())
                for number in range(SAMPLES):
                    file.seek(max(size - SAMPLE_BYTES, 0) * number // (SAMPLES - 1))
                    content.update(file.read(SAMPLE_BYTES))
        except OSError as error:
            raise bad(str(path), f"cannot be read: {error.strerror or error}", "check the path") from None
        except SafetensorError as error:
            raise bad(str(path), f"is no whole safetensors file ({error})", "fetch or write it anew") from None
    return content.hexdigest()
