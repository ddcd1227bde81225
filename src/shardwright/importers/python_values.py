"""Values that a Python configuration sets, read off its syntax tree. Nothing of it is executed.

A recipe is a function that returns a configuration: keyword arguments of constructors, and assignments to its fields.
Both give paths such as ("model", "tensor_model_parallel_size") with values; a later one overrides an earlier. Names are
looked up among the constants of the file and the defaults of the function; functions of the same file that it calls are
read where they are called. What is computed otherwise is `COMPUTED`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.errors import bad

Path = tuple[str, ...]
LARGEST_TEXT = 400_000
OPERATIONS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
}
LARGEST_RESULT = 100_000
NAMED = ("bfloat16", "float16", "float32", "uint8", "silu", "gelu", "squared_relu")  # of PyTorch and Megatron-LM


class _Computed:
    """Stands for a value that is known only when the file runs."""

    def __repr__(self) -> str:
        return "computed"


COMPUTED = _Computed()


@dataclass(slots=True)
class PythonValues:
    """`values` by path; `calls`, names of functions that the file calls, each with its literal arguments; `handed`,
    names that calls hand over (`run.Config(Llama3Config8B)`); `imports`, what each imported name is in full;
    `functions`, those of the file that are not being read; `objects`, what local names are made by, with the fields
    that it says; `makers`, the function that a local name is made by, and `bases`, those of names whose fields are set
    or that are returned."""

    values: dict[Path, Any] = field(default_factory=dict)
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    objects: dict[str, tuple[ast.Call, dict[Path, Any]]] = field(default_factory=dict)
    makers: dict[str, str] = field(default_factory=dict)
    bases: list[str] = field(default_factory=list)


def python_values(text: str, name: str, function: str | None = None) -> PythonValues:
    """Return what a Python file sets in `function`, by default where it runs as a program, else in the last function
    that it defines, or at its top where it defines none. Raises SpecError for text that is no Python, and for a
    function that is not there."""
    if len(text) > LARGEST_TEXT:
        raise bad(name, f"has more than {LARGEST_TEXT:,} characters", "is this the right file?")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise bad(name, f"is no Python that can be read: {getattr(error, 'msg', error)}", "correct it") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function is not None and function not in functions:
        raise bad(name, f"has no function {function}", f"it has {', '.join(functions) or 'none'}")
    module, names = PythonValues(functions=functions), dict[str, Any]()
    program = [node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) or (isinstance(node, ast.Expr) and not functions):
            _statement(node, names, module)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            module.imports |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
    if function is None and program:
        for node in program[-1].body:
            _statement(node, names, module)
    elif functions:
        _read(function or list(functions)[-1], {}, names, module)
    return module


def _read(function: str, given: Mapping[str, Any], names: Mapping[str, Any], module: PythonValues) -> None:
    """Take what a function of the file sets that is called with `given`; one that calls itself is read once."""
    chosen = module.functions.pop(function)
    scope = {**names, **_defaults(chosen, names), **given}
    for node in chosen.body:
        _statement(node, scope, module)
    module.functions[function] = chosen


def _given(function: ast.FunctionDef, call: ast.Call, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    pairs = zip((argument.arg for argument in function.args.args), call.args, strict=False)
    keywords = {name: _value(value, names) for name, value in pairs}
    return keywords | {
        keyword.arg: _value(keyword.value, names) for keyword in call.keywords if keyword.arg is not None
    }


def _defaults(function: ast.FunctionDef, names: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.args
    pairs = list(zip(reversed(arguments.args), reversed(arguments.defaults), strict=False))
    pairs += [(arg, value) for arg, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value]
    return {argument.arg: _value(value, names) for argument, value in pairs}


def _statement(node: ast.stmt, names: dict[str, Any], module: PythonValues) -> None:
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            _assign(target, node.value, names, module)
    elif isinstance(node, ast.Return | ast.Expr) and node.value is not None:
        _gather(node.value, names, module, ())
        if isinstance(node, ast.Return):
            module.bases += [maker for maker in (_maker(node.value, module),) if maker]
    elif isinstance(node, ast.If):
        truth = _value(node.test, names)
        for branch, taken in ((node.body, truth), (node.orelse, COMPUTED if truth is COMPUTED else not truth)):
            collected = module if taken is not COMPUTED else PythonValues(functions=module.functions)
            if taken is COMPUTED or taken:
                for inner in branch:
                    _statement(inner, names, collected)
            if taken is COMPUTED:
                module.values |= dict.fromkeys(collected.values, COMPUTED)
                module.calls += collected.calls


def _assign(target: ast.expr, value: ast.expr, names: dict[str, Any], module: PythonValues) -> None:
    path = _path(target)
    if isinstance(target, ast.Name):
        names[target.id] = _value(value, names)
        module.makers[target.id] = _maker(value, module)
        before = dict(module.values)
        _gather(value, names, module, ())
        if isinstance(value, ast.Call) and value.keywords:
            module.objects[target.id] = value, {key: said for key, said in module.values.items() if key not in before}
    elif path is not None:
        module.bases += [maker for maker in (module.makers.get(path[0]),) if maker]
        if isinstance(value, ast.Call | ast.Dict):
            _mark(path[1:], value, module)
            _gather(value, names, module, path[1:])
        else:
            module.values[path[1:]] = _value(value, names)


def _maker(node: ast.expr, module: PythonValues) -> str:
    """Return the name of the function that makes a value, empty for none."""
    if isinstance(node, ast.Name):
        return module.makers.get(node.id, "")
    return ".".join(_path(node.func) or ()) if isinstance(node, ast.Call) else ""


def _path(node: ast.expr) -> Path | None:
    """Return `cfg.model.x` or `cfg["model"]["x"]` as names."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        inner = _path(node.value)
        return None if inner is None else (*inner, node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        inner = _path(node.value)
        return None if inner is None else (*inner, str(node.slice.value))
    return None


def _gather(node: ast.expr, names: Mapping[str, Any], module: PythonValues, path: Path) -> None:
    """Take the keyword arguments of a call, and of the calls among them; of a function of the file what it sets."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in module.functions:
        _read(node.func.id, _given(module.functions[node.func.id], node, names), names, module)
        return
    for key, value in _entries(node, module, names):
        if isinstance(value, ast.Name) and value.id in module.objects:
            value, alone = module.objects.pop(value.id)  # a part, and no configuration by itself
            module.values = {
                field: said for field, said in module.values.items() if alone.get(field, names) is not said
            }
        if isinstance(value, ast.Call | ast.Dict):
            _mark((*path, key), value, module)
            _gather(value, names, module, (*path, key))
            continue
        module.values[(*path, key)] = _value(value, names)
        listed = PythonValues(calls=module.calls, functions=module.functions)  # whose fields are none of the path's own
        for item in value.elts if isinstance(value, ast.List) else ():
            _gather(item, names, module if key == "callbacks" else listed, ())


def _mark(path: Path, value: ast.expr, module: PythonValues) -> None:
    """A call with keywords makes a section of the configuration, any other computes a value."""
    if isinstance(value, ast.Call) and not value.keywords:
        module.values[path] = COMPUTED


def _entries(node: ast.expr, module: PythonValues, names: Mapping[str, Any]) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value
    elif isinstance(node, ast.Call):
        called = _path(node.func)
        if called is not None:
            module.calls.append((".".join(called), tuple(_value(argument, names) for argument in node.args)))
            module.handed += [".".join(path) for argument in node.args if (path := _path(argument)) is not None]
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            _gather(node.func.value, names, module, ())
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield keyword.arg, keyword.value
        for argument in node.args:
            if isinstance(argument, ast.Call):
                _gather(argument, names, module, ())


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return a literal, a known name, or arithmetic of them; else COMPUTED."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id if node.id in NAMED else COMPUTED)
    if isinstance(node, ast.Attribute) and node.attr in NAMED:
        return node.attr
    if isinstance(node, ast.List | ast.Tuple):
        items = [_value(item, names) for item in node.elts]
        return COMPUTED if COMPUTED in items else items
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = _value(node.left, names), _value(node.right, names)
        return _operated(node.op, left, right)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Is):
        left, right = _value(node.left, names), _value(node.comparators[0], names)
        equal = left == right
        return COMPUTED if COMPUTED in (left, right) else equal != isinstance(node.ops[0], ast.NotEq)
    return COMPUTED


def _operated(operator: ast.operator, left: Any, right: Any) -> Any:
    if left is COMPUTED or right is COMPUTED:
        return COMPUTED
    sizes = [len(value) for value in (left, right) if isinstance(value, list | str)]
    counts = [value for value in (left, right) if isinstance(value, int)]
    if sizes and counts and max(sizes) * max(counts) > LARGEST_RESULT:
        return COMPUTED
    try:
        return OPERATIONS[type(operator)](left, right)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return COMPUTED
