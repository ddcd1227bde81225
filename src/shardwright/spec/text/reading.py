"""Reading of text, JSON and YAML that a user wrote: the result is plain data, or a `SpecError` that names the place.

Readers check plain data, which has no lines; a problem names its field by its path (`cluster.yaml: nodes[1].gpu`). Only
when something is wrong is the text looked at again, and the path followed through it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import Problem, SpecError, bad

if TYPE_CHECKING:
    import yaml

JSON, YAML = ".json", (".yaml", ".yml")
MAX_DEPTH = 100
MAX_ALIASED_NODES = 100_000
LARGEST_INTEGER = 10**300
# YAML 1.1 takes 1e12 for a string, because it has neither a dot nor a signed exponent.
SHORT_FLOAT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
YAML_TAG = "tag:yaml.org,2002:"
STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def read_text(path: Path, *, limit_bytes: int = 4_000_000) -> str:
    """Return the text of the UTF-8 file `path` (a byte order mark is dropped).

    Raises SpecError for a file that is missing, a folder, unreadable, larger than `limit_bytes`, or no text.
    """
    name = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except FileNotFoundError:
        raise bad(name, "no such file", "check the path") from None
    except IsADirectoryError:
        raise bad(name, "is a folder, not a file", "name the file inside it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise bad(name, f"cannot be read: {reason}", "check the path and its permissions") from None
    if len(content) > limit_bytes:
        raise bad(name, f"is larger than {limit_bytes:,} bytes", "is this the right file?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad(name, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    if "\0" in text:
        raise bad(name, "is a binary file, not text", "is this the right file?")
    return text


def parsed(text: str, name: str) -> object:
    """Return the document of a file: JSON or YAML by the ending of its name, else by how the text begins."""
    ending = Path(name).suffix.casefold()
    is_json = ending == JSON or (ending not in YAML and text.lstrip().startswith("{"))
    return parse_json(text, name) if is_json else parse_yaml(text, name)


def parse_json(text: str, name: str) -> object:
    """Return the JSON document `text`; `name` stands for it in messages.

    Raises SpecError for a syntax error (with line and column), a repeated key, NaN, an infinite or absurdly large
    number, and nesting deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, name))
    except json.JSONDecodeError as error:
        if not text.strip():
            raise bad(name, "is empty", "expected a JSON document") from None
        place = f"{name}: line {error.lineno}, column {error.colno}"
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        hint = "the file seems to be cut off" if cut else "mend the JSON there"
        raise bad(place, f"not valid JSON: {error.msg}", hint) from None
    except RecursionError:
        raise _too_deep(name) from None
    except SpecError:
        raise
    except ValueError:
        raise bad(name, "contains a number with too many digits", "write it with an exponent") from None
    _check(value, name, name, 0)
    return value


def parse_yaml(text: str, name: str) -> object:
    """Return the YAML document `text` as JSON-like data: mappings have string keys, dates stay strings.

    Raises SpecError for a syntax error (with line and column), a repeated key, several documents, tags other than
    the plain ones, an alias inside its own anchor, aliases that multiply beyond `MAX_ALIASED_NODES`, NaN, an
    infinite or absurdly large number, and nesting deeper than `MAX_DEPTH`.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader), name)
        root = yaml.compose(text, Loader=loader)
        value = None if root is None else _value(root, yaml.SafeLoader(""), name)
    except yaml.MarkedYAMLError as error:
        what = error.problem or error.context or "syntax error"
        if "nesting depth" in what:  # libyaml's own limit, which PyYAML 6.0.4 looks at while it reads ahead
            raise _too_deep(name) from None
        if "expected a single document" in f"{error.context}":
            what = "more than one document"
        raise bad(_place(name, error.problem_mark), f"not valid YAML: {what}", "mend the YAML there") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise bad(name, f"not valid YAML: {str(error).splitlines()[0]}", "remove the odd characters") from None
    _check(value, name, name, 0)
    return value


def _too_deep(name: str) -> SpecError:
    return bad(name, f"is nested more than {MAX_DEPTH} levels deep", "is this the right file?")


def _unique(pairs: list[tuple[str, object]], name: str) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise bad(name, f"the key {repeated!r} appears twice in one mapping", "keep one of them")
    return mapping


def _check(value: object, path: str, name: str, depth: int) -> None:
    """Raise SpecError for numbers that are not finite or too large, and for nesting that is too deep."""
    if depth > MAX_DEPTH:
        raise _too_deep(name)
    separator = ": " if depth == 0 else ""
    if isinstance(value, dict):
        for key, item in value.items():
            _check(item, f"{path}{separator or '.'}{key}", name, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{path}{separator}[{index}]", name, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise bad(path, f"{value} is not a finite number", "write a finite number")
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise bad(path, "the number is too large", "write a number below 1e300")


def _place(name: str, mark: Any) -> str:
    """Return the name with line and column of a YAML mark, where there is one."""
    return name if mark is None else f"{name}: line {mark.line + 1}, column {mark.column + 1}"


def _check_events(events: Any, name: str) -> None:
    """Raise SpecError for nesting and aliases that would make the document infinite or huge once expanded.

    The parser's events are flat, so this runs before anything recursive does.
    """
    import yaml

    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    nodes = aliased = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                message = f"the alias *{event.anchor} stands inside its own anchor"
                raise bad(_place(name, event.start_mark), message, "a value cannot contain itself")
            size = sizes.get(event.anchor, 0)
            aliased += size
            nodes += size
            if aliased > MAX_ALIASED_NODES:
                message = f"aliases expand to more than {MAX_ALIASED_NODES:,} values"
                raise bad(_place(name, event.start_mark), message, "write the values out")
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, nodes))
            nodes += 1
            if len(open_nodes) > MAX_DEPTH:
                raise _too_deep(name)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = nodes - before
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor:
                sizes[event.anchor] = 1


def _value(node: yaml.Node, constructor: yaml.SafeLoader, name: str) -> object:
    """Return the plain data of a YAML node."""
    import yaml

    tag = node.tag.removeprefix(YAML_TAG)
    if isinstance(node, yaml.MappingNode) and tag == "map":
        return _mapping(node, constructor, name)
    if isinstance(node, yaml.SequenceNode) and tag == "seq":
        return [_value(item, constructor, name) for item in node.value]
    if isinstance(node, yaml.ScalarNode) and tag in ("str", "int", "float", "bool", "null", "timestamp", "value"):
        return _scalar(node, tag, constructor, name)
    hint = "write a plain mapping, list, text or number"
    raise bad(_place(name, node.start_mark), f"the tag {_short(node.tag)!r} is not allowed here", hint)


def _short(tag: str) -> str:
    return "!!" + tag.removeprefix(YAML_TAG) if tag.startswith(YAML_TAG) else tag


def _scalar(node: yaml.ScalarNode, tag: str, constructor: yaml.SafeLoader, name: str) -> object:
    text = str(node.value)
    if tag == "str" and not node.style and SHORT_FLOAT.fullmatch(text):
        return float(text)
    # YAML 1.1 reads 1:30 as ninety; nobody means that.
    if tag in ("str", "timestamp", "value") or (tag in ("int", "float") and ":" in text):
        return text
    try:
        value: object = constructor.construct_object(node)
    except (ValueError, KeyError, IndexError, OverflowError):
        raise bad(
            _place(name, node.start_mark), f"{text[:40]!r} does not fit the tag !!{tag}", "mend the value"
        ) from None
    return value


def _mapping(node: yaml.MappingNode, constructor: yaml.SafeLoader, name: str) -> dict[str, object]:
    """Return a mapping with the keys as they are written; `<<` merges, and explicit keys win over merged ones."""
    import yaml

    explicit: dict[str, object] = {}
    merged: dict[str, object] = {}
    for key_node, value_node in node.value:
        place = _place(name, key_node.start_mark)
        if not isinstance(key_node, yaml.ScalarNode):
            raise bad(place, "a key is a list or mapping", "write a plain word as key")
        key, value = str(key_node.value), _value(value_node, constructor, name)
        if key_node.tag == YAML_TAG + "merge":
            for source in value if isinstance(value, list) else [value]:
                if not isinstance(source, dict):
                    raise bad(place, "'<<' merges something that is no mapping", "merge a mapping by its alias")
                merged = source | merged
        elif key in explicit:
            raise bad(place, f"the key {key!r} appears twice in one mapping", "keep one of them")
        else:
            explicit[key] = value
    return merged | explicit


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
