"""The memory that tensors take at a time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Peak(TorchDispatchMode):
    """Counts the bytes of the memory that tensors made in this thread hold, and the most of them at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else (result,)
        for tensor, returned in zip(results, function._schema.returns, strict=False):
            if (
                isinstance(tensor, Tensor) and returned.alias_info is None
            ):  # else it is a view, of another rank's perhaps
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage.data_ptr()
        if key and key not in self.known:
            self.known.add(key)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size
