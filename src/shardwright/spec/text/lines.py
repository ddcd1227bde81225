"""Which line of a file a field stands on, for messages about what a document says.

Readers check plain data, which has no lines; a problem names its field by its path (`cluster.yaml: nodes[1].gpu`). Only
when something is wrong is the text looked at again, and the path followed through it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.errors import Problem, SpecError
from shardwright.spec.text.reading import parsed, read_text

if TYPE_CHECKING:
    import yaml

STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


@contextmanager
def document(path: Path) -> Iterator[object]:
    """Yield what a JSON or YAML file holds; problems raised inside are `located`. Raises SpecError where it holds
    neither."""
    text, name = read_text(path), str(path)
    data = parsed(text, name)
    with located(text, name):
        yield data


@contextmanager
def located(text: str, name: str) -> Iterator[None]:
    """Put the line into the place of every problem raised inside that names a field of the YAML or JSON `text`:
    `cluster.yaml: line 5: nodes[1].gpu`. A field that is missing has the line of the mapping that lacks it."""
    try:
        yield
    except SpecError as error:
        raise SpecError(*_with_lines(error.problems, text, name)) from None


@contextmanager
def sought(text: str, name: str) -> Iterator[None]:
    """Put the line into the place of every problem raised inside whose field a text in any language has on one line
    alone: `run.sh: line 12: --num-layers`."""
    try:
        yield
    except SpecError as error:
        raise SpecError(*(_sought(problem, text, f"{name}: ") for problem in error.problems)) from None


def _sought(problem: Problem, text: str, prefix: str) -> Problem:
    field = problem.path.removeprefix(prefix)
    word = re.compile(rf"^(?!\s*#)(?:.*[^\w\n-])?{re.escape(field.rsplit('.', 1)[-1])}(?![\w-])", re.MULTILINE)
    matches = [] if field == problem.path or field.startswith("line ") else [*word.finditer(text)]
    if len(matches) != 1:
        return problem
    return replace(problem, path=f"{prefix}line {text.count(chr(10), 0, matches[0].end()) + 1}: {field}")


def _with_lines(problems: tuple[Problem, ...], text: str, name: str) -> Iterator[Problem]:
    import yaml

    prefix = f"{name}: "
    if not any(problem.path.startswith(prefix) for problem in problems):
        yield from problems
        return
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        root = None
    for problem in problems:
        field = problem.path.removeprefix(prefix)
        line = None if field == problem.path or field.startswith("line ") else _line(root, field)
        yield problem if line is None else replace(problem, path=f"{prefix}line {line}: {field}")


def _line(root: yaml.Node | None, field: str) -> int | None:
    """Return the line of a field, or of the nearest thing around it, counted from 1; None where nothing is found."""
    import yaml

    node, line = root, None
    for index, key in STEP.findall(field):
        child: yaml.Node | None = None
        if index and isinstance(node, yaml.SequenceNode) and int(index) < len(node.value):
            child = node.value[int(index)]
            line = child.start_mark.line + 1
        elif key and isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                if key_node.value == key:
                    child, line = value_node, key_node.start_mark.line + 1
        if child is None:
            break
        node = child
    if line is None and isinstance(root, yaml.CollectionNode):
        return int(root.start_mark.line) + 1
    return line
