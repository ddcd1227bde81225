"""The memory that tensors take at a time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LARGE_BYTES = 1 << 16


class Peak(TorchDispatchMode):
    """Counts the bytes of the memory that tensors made in this thread hold, and the most of them at one time. Large
    memory is looked at again with every operator, for it may be given back and taken again while its tensor lives."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.sizes: dict[int, int] = {}
        self.large: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for key, reference in list(self.large.items()):
            storage = reference()
            if storage is not None:
                self._hold(key, storage.nbytes())
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else (result,)
        for tensor, returned in zip(results, function._schema.returns, strict=False):
            if (
                isinstance(tensor, Tensor) and returned.alias_info is None
            ):  # else it is a view, of another rank's perhaps
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.sizes:
            weakref.finalize(storage, self._forget, key)
            if storage.nbytes() >= LARGE_BYTES:
                self.large[key] = weakref.ref(storage)
            self._hold(key, storage.nbytes())

    def _hold(self, key: int, size: int) -> None:
        self.now += size - self.sizes.get(key, 0)
        self.sizes[key] = size
        self.most = max(self.most, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self.sizes.pop(key)
        self.large.pop(key, None)
