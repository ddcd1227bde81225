"""Names that say nothing: pronouns as variables may only become fewer."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = (ROOT / "src" / "shardwright", ROOT / "tools")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# How many functions bind the name: when one becomes fewer, write the lower figure here. None may rise.
MOST = {"found": 256, "one": 69, "each": 57, "own": 52, "these": 0, "told": 14, "those": 1}


def bound(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[str]:
    """Yield the names that a function takes as parameters or assigns, less those of functions inside it."""
    takes = function.args
    for argument in (*takes.posonlyargs, *takes.args, *takes.kwonlyargs, takes.vararg, takes.kwarg):
        if argument is not None:
            yield argument.arg
    nodes: list[ast.AST] = list(function.body) if isinstance(function.body, list) else [function.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, FUNCTIONS):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and node.name:
            yield node.name
        nodes += ast.iter_child_nodes(node)


def binders(source: str) -> Counter[str]:
    """Return how many functions of a module bind each name."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTIONS))
    return Counter(name for function in functions for name in set(bound(function)))


def test_pronouns_as_names_become_fewer() -> None:
    counts: Counter[str] = Counter()
    for path in (path for folder in CODE for path in folder.rglob("*.py")):
        counts.update(binders(path.read_text(encoding="utf-8")))
    assert {name: counts[name] for name in MOST if counts[name] > MOST[name]} == {}, "say what the thing is"


def test_a_name_is_counted_once_for_each_function_that_binds_it() -> None:
    source = """
def f(found, *, own=1):
    found = [one for one in found if (told := one)]
    for each in found:
        with open(each) as those:
            pass
    g = lambda these: these
    def h():
        found.one = found[0]
"""
    names = ("found", "own", "one", "told", "each", "those", "these")
    assert {name: binders(source)[name] for name in names} == dict.fromkeys(names, 1)
