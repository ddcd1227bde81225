"""Files of tensors, in the safetensors format: opened lazily, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from shardwright.errors import bad


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFile:
    """An open file: its tensors' names and its metadata; tensors are read when asked for."""

    names: frozenset[str]
    metadata: Mapping[str, str]
    handle: Any

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor. Do not write to it: its memory may be the file."""
        found: torch.Tensor = self.handle.get_tensor(name)
        return found


def open_tensors(path: Path) -> TensorFile:
    """Open a file. Raises SpecError where it is missing, cut off or of another format."""
    try:
        handle: Any = safe_open(path, framework="pt")
    except OSError as error:
        raise bad(str(path), f"cannot be read: {error.strerror or error}", "check the path") from None
    except SafetensorError as error:
        raise bad(str(path), f"is no whole safetensors file ({error})", "fetch or write it anew") from None
    return TensorFile(names=frozenset(handle.keys()), metadata=handle.metadata() or {}, handle=handle)


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a temporary file beside `path`, then rename it, so that a reader never sees a part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(descriptor)
    try:
        # the library refuses tensors that share memory, such as parts of one buffer
        alone = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        save_file(alone, temporary, dict(metadata or {}))
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
