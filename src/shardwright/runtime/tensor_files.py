"""Files of tensors in the safetensors format: a JSON header of names, types, shapes and offsets, then the bytes.

The format is huggingface/safetensors' (README, "Format"): eight bytes of little-endian header length, the header, the
data. Files are mapped, so only what is used of a tensor is read.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardwright.errors import bad

NAMES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
TYPES = {dtype: name for name, dtype in NAMES.items()}
LARGEST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFile:
    """An open file: the entries of its header by tensor name, its metadata, its bytes."""

    path: Path
    entries: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, str]
    data: Any

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor whose memory is the file: read it, do not write to it."""
        entry = self.entries[name]
        start, stop = entry["data_offsets"]
        if start == stop:
            return torch.empty(entry["shape"], dtype=NAMES[entry["dtype"]])
        return (
            torch.frombuffer(self.data, dtype=torch.uint8)[start:stop].view(NAMES[entry["dtype"]]).view(entry["shape"])
        )


def open_tensors(path: Path) -> TensorFile:
    """Open a file. Raises SpecError where it is missing, cut off or of another format."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(LARGEST_HEADER_BYTES, size):
                raise ValueError
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        known = all(entry["dtype"] in NAMES for entry in header.values())
    except OSError as error:
        raise bad(str(path), f"cannot be read: {error.strerror}", "check the path") from None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error):
        raise bad(str(path), "is no safetensors file", "give a file that Hugging Face or this tool wrote") from None
    if size < 8 + length + end or not known:
        raise bad(str(path), "is cut off or has a type of tensor that is not known", "fetch or write it anew")
    data = np.memmap(path, dtype=np.uint8, mode="c", offset=8 + length) if end else b""
    return TensorFile(path=path, entries=header, metadata=metadata, data=data)


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a temporary file beside `path`, then rename it, so that a reader never sees a part."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                flat = tensor.detach().cpu().contiguous().view(-1)
                file.write(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
