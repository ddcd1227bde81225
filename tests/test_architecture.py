"""The floors of the package: who may import whom, and what planning must not pull in."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import shardwright

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "shardwright"
TORCH_FOLDERS = {"spmd", "runtime", "measure", "rehearsal"}
HEAVY = ("torch", "scipy", "xgboost", "pandas", "matplotlib")


@cache
def floors() -> dict[str, int]:
    """Return the floor of each part of the package, 0 the lowest, from the layers in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (c for c in project["tool"]["importlinter"]["contracts"] if c["id"] == "floors")
    lowest_first = reversed(contract["layers"])
    return {part.strip().strip("()"): height for height, layer in enumerate(lowest_first) for part in layer.split(":")}


def modules() -> list[tuple[tuple[str, ...], Path]]:
    """Return the dotted name (as parts, without `__init__`) and file of every module of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("shardwright", *path.relative_to(PACKAGE).with_suffix("").parts)
        found.append((parts[:-1] if parts[-1] == "__init__" else parts, path))
    return found


def imports(source: str, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield line and absolute dotted name of every import in `source`, those inside functions too.

    `from a import b` yields `a.b`, because `b` may be a module. `package` is what relative imports start from.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join((*base, *((node.module,) if node.module else ())))
            for alias in node.names:
                yield node.lineno, f"{start}.{alias.name}"


def breaches(source: str, module: tuple[str, ...], *, is_package: bool) -> list[str]:
    """Return the imports in `source` that its floor forbids. The package itself, which re-exports the library's
    calls, stands between the highest floor and the command line."""
    heights = floors()
    library = heights["cli"] - 0.5
    own = heights[module[1]] if len(module) > 1 else library
    found = []
    for line, name in imports(source, module if is_package else module[:-1]):
        parts = name.split(".")
        if parts[0] != "shardwright":
            continue
        height = heights.get(parts[1], library) if len(parts) > 1 else library
        if height > own:
            found.append(f"{'.'.join(module)}:{line} imports {name}")
    return found


def test_every_part_of_the_package_has_a_floor() -> None:
    parts = {module[1] for module, _ in modules() if len(module) > 1}
    assert parts - floors().keys() == set()


def test_no_module_imports_a_higher_floor() -> None:
    found = [
        breach
        for module, path in modules()
        for breach in breaches(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "module", "is_package", "allowed"),
    [
        ("from shardwright.search.uniform.best import best", ("shardwright", "cost", "x"), False, False),
        ("def f():\n    import shardwright.search.uniform.best", ("shardwright", "cost", "x"), False, False),
        ("from shardwright import cli", ("shardwright", "search"), True, False),
        ("from shardwright import Plan", ("shardwright", "cost", "x"), False, False),
        ("from ..search import best", ("shardwright", "cost", "x"), False, False),
        ("from ..search import best", ("shardwright", "cost", "sub"), True, True),
        ("from ...search import best", ("shardwright", "cost", "sub"), True, False),
        ("from .search import best", ("shardwright",), True, True),
        ("from .cli.app import main", ("shardwright",), True, False),
        ("from . import memory", ("shardwright", "cost", "x"), False, True),
        ("from ..spec import model", ("shardwright", "cost", "x"), False, True),
        ("from shardwright import plan", ("shardwright", "cli", "app"), False, True),
        ("from shardwright.exporters import sky", ("shardwright", "reports", "x"), False, True),
        ("from shardwright.errors import bad", ("shardwright", "units"), False, True),
        ("from shardwright.files import write", ("shardwright", "errors"), False, False),
    ],
)
def test_a_forbidden_import_is_found(source: str, module: tuple[str, ...], is_package: bool, allowed: bool) -> None:
    assert (breaches(source, module, is_package=is_package) == []) is allowed


def test_only_spmd_and_runtime_import_torch() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for module, path in modules()
        if len(module) == 1 or module[1] not in TORCH_FOLDERS
        if "torch" in (source := path.read_text(encoding="utf-8"))
        for line, name in imports(source, module)
        if name.split(".")[0] in ("torch", "torchvision", "torchaudio")
    ]
    assert found == []


FLAG = re.compile(r"(?<![\w-])--[a-z]")
COMMAND_LINES = {"cli", "exporters", "importers", "reports"}  # and the words in which people read


def test_flags_are_named_in_words_for_people_alone() -> None:
    """The library names arguments (`fit=0.8`); `reports.words.flagged` makes flags of them."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} says {node.value!r}"
        for module, path in modules()
        if len(module) > 1 and module[1] not in COMMAND_LINES
        if FLAG.search(source := path.read_text(encoding="utf-8"))
        for node in strings(source)
        if FLAG.search(node.value)
    ]
    assert found == []


def strings(source: str) -> Iterator[ast.Constant]:
    """Yield the string constants of a module that are neither docstrings nor words of another program's command."""
    tree = ast.parse(source)
    others = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for command in ast.walk(tree):
        if isinstance(command, ast.List | ast.Tuple):
            others |= {id(part) for word in command.elts for part in ast.walk(word)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in others:
            yield node


def test_a_flag_in_a_string_is_found() -> None:
    source = '"""Takes --fit."""\nrun(["tool", "--id=0"])\nraise bad(f"--fit {value}", "a -- b", hint="see --help")'
    assert [node.value for node in strings(source) if FLAG.search(node.value)] == ["--fit ", "see --help"]


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("shardwright", HEAVY),
        ("shardwright.cli.app", (*HEAVY, "numpy", "yaml")),
        ("shardwright.trainers.plan", (*HEAVY, "yaml", "shardwright.search.several", "shardwright.search.mixed.entry")),
        ("shardwright.runtime.recovery.keeper.keeper", HEAVY),
    ],
)
def test_import_stays_light(module: str, without: Sequence[str]) -> None:
    program = f"import sys, {module}; print(*({set(without)!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def rooms() -> list[Path]:
    """Return every folder of modules below the package."""
    return sorted({path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE})


@pytest.mark.parametrize("room", [room for room in rooms() if room.name != "cli"], ids=lambda p: p.name)
def test_the_docstring_of_a_folder_has_a_line_for_each_thing_in_it(room: Path) -> None:
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    named = {line.split("`")[1].rstrip("/") for line in docstring.splitlines() if line.startswith("* `")}
    modules = {path.stem for path in room.glob("*.py")} - {"__init__", "__main__"}
    folders = {path.parent.name for path in room.glob("*/__init__.py")}
    assert named == modules | folders


def test_no_folder_has_the_name_of_a_public_function() -> None:
    public = set(shardwright.__all__)
    assert [room for room in rooms() if room.parent == PACKAGE and room.name in public] == []


OUTSIDE = sorted(
    path for folder in ("benchmarks", "docs", "examples", "tools") for path in (ROOT / folder).rglob("*.py")
)


def missing_names(source: str) -> list[str]:
    """Return the names that a source imports from the package, its tests or its tools, and that are not there."""
    named = (
        (node.module or "", alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] in ("shardwright", "tests", "tools")
        for alias in node.names
    )
    return [f"{module}.{name}" for module, name in named if not _is_there(importlib.import_module(module), name)]


def _is_there(module: ModuleType, name: str) -> bool:
    folder = hasattr(module, "__path__")
    return hasattr(module, name) or (folder and importlib.util.find_spec(f"{module.__name__}.{name}") is not None)


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_stands_beside_the_package_imports_names_that_are_there(path: Path) -> None:
    """Benchmarks and tools are run by hand, and no type checker reads them."""
    assert missing_names(path.read_text(encoding="utf-8")) == []


def test_a_name_that_is_not_there_is_found() -> None:
    source = "from shardwright.spec.job import Job, Jobs\nfrom shardwright.spec import job\nfrom os import nothing"
    assert missing_names(source) == ["shardwright.spec.job.Jobs"]
