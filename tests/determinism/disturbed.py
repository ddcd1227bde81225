"""The package with every result disturbed that processors may round differently.

Matrix products (also those that are added up in order), inverses, exponentials and logarithms, predictions of trees and
solutions of the integer solver come out as if multiplied by 1 + k 2⁻⁵², where k is 2 (`up`), -2 (`down`) or, for a
number, drawn from -4 to 4 for each element with that seed. Modules are rewritten as they are imported, so this serves
processes that have not imported the package yet.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

import numpy as np

FUNCTIONS = frozenset(
    (
        *("dot", "einsum", "matmul", "inv", "solve", "lstsq", "interp", "power", "geomspace"),
        *("exp", "expm1", "log", "log1p", "log2", "log10"),
        *("forest_sum", "weighed", "inverse"),
    )
)
ATTRIBUTES = frozenset(("col_value", "mip_dual_bound"))
MAYBE = re.compile(
    rb"@ |\b(?:%s)\b" % "|".join(sorted(FUNCTIONS | ATTRIBUTES)).encode()
)  # what a module to rewrite has
NAME = "__disturbed__"


def install(mode: str) -> Counter[str]:
    """Disturb the package from now on. Return a count of the results that were disturbed."""
    assert "shardwright" not in sys.modules, "what is imported already is not disturbed"
    disturbed, counts = disturbance(mode), Counter[str]()

    def counted(value: Any) -> Any:
        counts["results"] += 1
        return disturbed(value)

    sys.meta_path.insert(0, _Finder(counted))
    return counts


def disturbance(mode: str) -> Callable[[Any], Any]:
    """Return what disturbs a result; what is not of floating-point numbers stays as it is."""
    random = np.random.default_rng(int(mode)) if mode.isdigit() else None

    def disturbed(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], float):
            return disturbed(np.array(value)).tolist()
        array = np.asarray(value)
        if array.dtype != np.float64:
            return value
        steps = random.integers(-4, 5, array.shape) if random else {"up": 2, "down": -2}[mode]
        found = np.where(np.isfinite(array), array * (1.0 + np.asarray(steps) * 2.0**-52), array)
        return found if isinstance(value, np.ndarray) else float(found)

    return disturbed


class _Rewriter(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        return _wrapped(node) if isinstance(node.op, ast.MatMult) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return _wrapped(node) if called in FUNCTIONS else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return _wrapped(node) if node.attr in ATTRIBUTES and isinstance(node.ctx, ast.Load) else node


def _wrapped(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(NAME, ast.Load()), [node], []), node)


class _Loader(SourceFileLoader):
    disturbed: Callable[[Any], Any]

    def get_code(self, fullname: str) -> CodeType | None:
        if not MAYBE.search(self.get_data(self.path)):
            return super().get_code(fullname)
        tree = ast.fix_missing_locations(_Rewriter().visit(ast.parse(self.get_data(self.path))))
        return compile(tree, self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[NAME] = self.disturbed
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def __init__(self, disturbed: Callable[[Any], Any]) -> None:
        self.disturbed = disturbed

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "shardwright":
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.origin is not None and found.origin.endswith(".py"):
            loader = _Loader(fullname, found.origin)
            loader.disturbed = self.disturbed
            found.loader = loader
        return found
