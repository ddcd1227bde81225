"""The memory that tensors take at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Peak(TorchDispatchMode):
    """Counts the bytes of the memory that tensors made in this thread hold, and the most of them at one time; what is
    given back and taken again while its tensor lives too (`UntypedStorage.resize_`)."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.sizes: dict[int, int] = {}
        self.resizing = patch.object(torch.UntypedStorage, "resize_", self._resized(torch.UntypedStorage.resize_))

    def __enter__(self) -> Self:
        self.resizing.start()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.resizing.stop()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else (result,)
        for tensor, returned in zip(results, function._schema.returns, strict=False):
            if (
                isinstance(tensor, Tensor) and returned.alias_info is None
            ):  # else it is a view, of another rank's perhaps
                self._count(tensor.untyped_storage())
        return result

    def _resized(
        self, resize: Callable[[torch.UntypedStorage, int], Any]
    ) -> Callable[[torch.UntypedStorage, int], Any]:
        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self.sizes:
                self._hold(storage._cdata, size)
            return result

        return resized

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.sizes:
            weakref.finalize(storage, self._forget, key)
            self._hold(key, storage.nbytes())

    def _hold(self, key: int, size: int) -> None:
        self.now += size - self.sizes.get(key, 0)
        self.sizes[key] = size
        self.most = max(self.most, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self.sizes.pop(key)
