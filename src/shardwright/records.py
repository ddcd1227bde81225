"""Records: frozen dataclasses whose classes are made in a tenth of the time (docs/decisions/0010-records.md).

`dataclass` compiles six methods of a frozen class one by one; planning imports three hundred classes, and makes objects
of a hundred. A record is made with its slots alone: its fields are read, and `__init__`, equality and hash compiled,
when they are first asked for. Classes of one shape share the code of `__init__`, and all share the other methods. In
all else a record is a dataclass: `fields`, `replace`, `asdict`, `match`, copies and pickles know it.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, replace
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

Class = TypeVar("Class", bound=type[Any])
CLASS_VARIABLES = ("ClassVar", "typing.ClassVar")  # what annotations begin with that are of no field
OF_FIELDS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")


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


class MadeLater:
    """An attribute of a class that is made when it is first asked for, and stands there itself from then on."""

    def __init__(self, make: Callable[[type[Any]], Any]) -> None:
        self.make = make

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, instance: object, cls: type[Any]) -> Any:
        made = self.make(self.owner)
        setattr(self.owner, self.name, made)
        # Not by its name: a subclass may have another, and `inspect` of Python 3.13 gives a class for the instance.
        return made.__get__(instance, cls) if hasattr(made, "__get__") else made


def _made(plain: type[Any], *, kw_only: bool, slots: bool, eq: bool) -> type[Any]:
    written = {name: value for name, value in vars(plain).items() if name not in ("__dict__", "__weakref__")}
    names = [name for name, said in plain.__annotations__.items() if not str(said).startswith(CLASS_VARIABLES)]
    defaults = {name: written.pop(name) for name in names if name in written}  # slots have none
    text = {"__doc__": plain.__doc__ or plain.__name__}  # or `dataclass` would write it, from a signature
    said = {**defaults, **text, "__module__": plain.__module__, "__annotations__": plain.__annotations__}
    if any(type(value).__hash__ is None for value in defaults.values()):
        _read(plain, said, kw_only)  # refuses what all objects would share

    def of_fields(name: str) -> Callable[[type[Any]], Any]:
        return lambda made: getattr(_read(made, said, kw_only), name)

    members = {name: MadeLater(of_fields(name)) for name in OF_FIELDS} | METHODS
    members["__init__"] = MadeLater(lambda made: _init(made, _items(plain.__annotations__, names, defaults, kw_only)))
    if slots:
        inherited = [vars(base).get("__slots__", ()) for base in plain.__mro__[1:]]
        members["__slots__"] = tuple(name for name in names if not any(name in there for there in inherited))
        members |= {"__getstate__": _state, "__setstate__": _set_state}
    if eq:
        members |= {"__eq__": MadeLater(_equality), "__hash__": MadeLater(_hash)}
    members |= {**written, **text, "__qualname__": plain.__qualname__}
    metaclass: Any = type(plain)
    made: type[Any] = metaclass(plain.__name__, plain.__bases__, members)
    if "torch" in sys.modules:
        getattr(made, "__init__")  # noqa: B009  now, or Dynamo would trace how it is made in a compiled layer
    return made


def _read(made: type[Any], said: dict[str, Any], kw_only: bool) -> type[Any]:
    """Return a class of a record's fields alone, as `dataclass` makes it of what was `said` of them."""
    scratch: Any = dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(type(made.__name__, (), dict(said)))
    scratch.__dataclass_params__.frozen = True
    return scratch  # type: ignore[no-any-return]


def _items(
    types: Mapping[str, Any], names: Sequence[str], defaults: Mapping[str, Any], kw_only: bool
) -> list[Field[Any]]:
    """Return the fields as `__init__` needs them, in a tenth of the time of `dataclass`, which looks into each type."""
    items: list[Field[Any]] = []
    for name in names:
        default = defaults.get(name, MISSING)
        item: Field[Any] = default if isinstance(default, Field) else field(default=default)
        item.name, item.type = name, types[name]
        item.kw_only = kw_only if item.kw_only is MISSING else item.kw_only
        items.append(item)
    return items


def _init(cls: type[Any], items: Sequence[Field[Any]]) -> Callable[..., None]:
    """Return the method that takes the fields, sets them, and calls `__post_init__` if there is one."""
    taken = [item for item in items if item.init or item.default_factory is not MISSING]
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


def _equality(cls: type[Any]) -> Callable[..., Any]:
    """Return the method by which two objects are equal if their fields are."""
    mine, theirs = _compared(cls, "self"), _compared(cls, "other")
    equal = f"lambda self, other: {mine} == {theirs} if other.__class__ is self.__class__ else NotImplemented"
    method: Callable[..., bool] = eval(equal)
    return method


def _hash(cls: type[Any]) -> Callable[..., int]:
    method: Callable[..., int] = eval(f"lambda self: hash({_compared(cls, 'self')})")
    return method


def _compared(cls: type[Any], which: str) -> str:
    return f"({''.join(f'{which}.{item.name}, ' for item in fields(cls) if item.compare)})"


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


METHODS: dict[str, Any] = {
    "__repr__": _repr,
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_del,
    "__replace__": replace,  # `copy.replace`, from Python 3.13 on
}
