"""Names that say nothing: pronouns as variables may only become fewer."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = (ROOT / "src" / "shardwright", ROOT / "tools")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# How many functions bind the name: when one becomes fewer, write the lower figure here. None may rise.
MOST = {"found": 42, "one": 6, "each": 7, "own": 6, "these": 0, "told": 2, "those": 0}


def binders(source: str) -> Counter[str]:
    """Return how many functions of a module bind each name, as a parameter or by an assignment: a function inside
    another one counts by itself."""
    bound: set[tuple[ast.AST, str]] = set()
    nodes: list[tuple[ast.AST, ast.AST | None]] = [(ast.parse(source), None)]
    while nodes:
        node, function = nodes.pop()
        if isinstance(node, FUNCTIONS):
            function, takes = node, node.args
            arguments = (*takes.posonlyargs, *takes.args, *takes.kwonlyargs, takes.vararg, takes.kwarg)
            bound.update((node, argument.arg) for argument in arguments if argument is not None)
        elif function is not None:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add((function, node.id))
            elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and node.name:
                bound.add((function, node.name))
        nodes += [(child, function) for child in ast.iter_child_nodes(node)]
    return Counter(name for _, name in bound)


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
