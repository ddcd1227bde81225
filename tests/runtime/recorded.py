"""The operators that a computation runs, in their order."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Recorded(TorchDispatchMode):
    """While it is entered, `calls` gets name, first argument and result of every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func.overloadpacket.__name__, args[0] if args else None, result))
        return result

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]
