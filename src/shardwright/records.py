"""Records: frozen dataclasses whose classes are made in a quarter of the time (docs/decisions/0010-records.md).

`dataclass` compiles six methods of a frozen class one by one; planning imports three hundred classes. A record shares
the code of its `__init__` with all of its shape, has its equality and hash compiled when they are first asked for, and
has the other methods from here. In all else it is a dataclass: `fields`, `replace`, `asdict`, `match`, copies and
pickles know it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

Class = TypeVar("Class", bound=type[Any])


@overload
def record(cls: Class, /) -> Class: ...


@overload
def record(*, kw_only: bool = True, slots: bool = True, eq: bool = True) -> Callable[[Class], Class]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: Any = None, /, *, kw_only: bool = True, slots: bool = True, eq: bool = True) -> Any:
    """Return a class as a frozen dataclass with slots, whose fields are given by name. Without `slots` it may have
    cached properties; without `eq` an object is equal to itself alone. No dataclass may be among the bases, and no
    field be an `InitVar` or have a `hash` that differs from its `compare`."""
    if cls is None:
        return lambda plain: _made(plain, kw_only=kw_only, slots=slots, eq=eq)
    return _made(cls, kw_only=kw_only, slots=slots, eq=eq)


def _made(plain: type[Any], *, kw_only: bool, slots: bool, eq: bool) -> type[Any]:
    plain.__doc__ = plain.__doc__ or plain.__name__  # or `dataclass` would write it, from a signature
    made: Any = dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)(plain)
    vars(made)["__dataclass_params__"].frozen = True
    methods = {"__init__": _init(made), "__repr__": _repr, "__setattr__": _refuse_to_set, "__delattr__": _refuse_to_del}
    if slots:
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    if eq:
        methods |= _equality(made)
    for name, method in methods.items():
        if name not in vars(made):
            setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _init(cls: type[Any]) -> Callable[..., None]:
    """Return the method that takes the fields, sets them, and calls `__post_init__` if there is one."""
    taken = [item for item in fields(cls) if item.init or item.default_factory is not MISSING]
    names = {f"f{number}": item.name for number, item in enumerate(taken)}
    shape = tuple((item.init, item.kw_only, item.default_factory is not MISSING) for item in taken)
    code = _init_code(shape, hasattr(cls, "__post_init__"))
    code = code.replace(
        co_varnames=tuple(names.get(name, name) for name in code.co_varnames),
        co_consts=tuple(names.get(value, value) if isinstance(value, str) else value for value in code.co_consts),
    )
    factories = {f"_new_f{number}": item.default_factory for number, item in enumerate(taken)}
    names_of_code = {"__builtins__": builtins, "_object": object, "_missing": MISSING}  # Dynamo looks for the first
    init = FunctionType(code, names_of_code | factories)
    init.__defaults__ = tuple(item.default for item in taken if item.init and not item.kw_only and _optional(item))
    init.__kwdefaults__ = {item.name: item.default for item in taken if item.init and item.kw_only and _optional(item)}
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {item.name: item.type for item in taken if item.init} | {"return": None}
    return init


@cache
def _init_code(shape: tuple[tuple[bool, bool, bool], ...], post: bool) -> CodeType:
    """Return the code of `__init__` for fields named `f0`, `f1`, …, of which `shape` says which are parameters, are
    given by name, and have a factory. Classes of one shape share it under the names of their fields: a compilation
    takes as long as all else that makes a class."""
    first, by_name, lines = ["self"], ["*"], ["_set = _object.__setattr__"]  # looked up within, or Dynamo takes another
    for number, (parameter, kw_only, factory) in enumerate(shape):
        name = value = f"f{number}"
        if factory:
            value = f"_new_{name}() if {name} is _missing else {name}" if parameter else f"_new_{name}()"
        if parameter:
            (by_name if kw_only else first).append(name)
        lines.append(f"_set(self, {name!r}, {value})")
    if post:
        lines.append("self.__post_init__()")
    parameters = ", ".join(first + (by_name if len(by_name) > 1 else []))
    whole = compile(f"def __init__({parameters}):\n " + "\n ".join(lines), "<record>", "exec")
    return next(value for value in whole.co_consts if isinstance(value, CodeType))


def _optional(item: Field[Any]) -> bool:
    return item.default is not MISSING or item.default_factory is not MISSING


def _equality(cls: type[Any]) -> dict[str, Callable[..., Any]]:
    """Return the methods by which two objects are equal if their fields are."""
    names = [item.name for item in fields(cls) if item.compare]
    mine, theirs = (f"({''.join(f'{which}.{name}, ' for name in names)})" for which in ("self", "other"))
    equal = f"lambda self, other: {mine} == {theirs} if other.__class__ is self.__class__ else NotImplemented"
    return {
        "__eq__": _compiled_when_called(cls, "__eq__", equal),
        "__hash__": _compiled_when_called(cls, "__hash__", f"lambda self: hash({mine})"),
    }


def _compiled_when_called(cls: type[Any], name: str, source: str) -> Callable[..., Any]:
    """Return a method that puts its source, compiled, in its place when it is first called: of few classes it is."""

    def method(self: Any, *others: Any) -> Any:
        compiled = eval(source)
        setattr(cls, name, compiled)
        return compiled(self, *others)

    return method


def _repr(self: Any) -> str:
    shown = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse_to_set(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_del(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for item, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)
