"""The checker behind the types and shapes in signatures: an int is a fine float.

jaxtyping's import hook decorates every function with its `jaxtyped`, which binds the arguments and
checks them twice over, for the sake of its messages. That is most of what a test costs. Here each
call is checked once, by beartype, and only functions whose signatures name a tensor remember the
sizes of axes from one argument to the next, and to what is returned. What is never called costs
nothing: a checker is made at the first call.

A test that runs on all models of the zoo is checked on every fourth (`choose`), another fourth for
another test, so that all models and all functions are met.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from functools import partial, wraps
from types import CodeType, FunctionType
from typing import Any, get_type_hints
from zlib import crc32

import jaxtyping
import pytest
from beartype import BeartypeConf, beartype
from jaxtyping._storage import pop_shape_memo, push_shape_memo

INSIDE = "<locals>"
MADE: set[CodeType] = set()
"""Functions inside of functions that were checked: each time anew would cost more than they do."""
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
MANY, EACH = 40, 4
"""Of a test function with so many cases, one in so many is checked."""
CHECKED = pytest.StashKey[bool]()


class Switch:
    """Whether calls are checked now."""

    on = True


def install(package: str) -> None:
    """Checks every function of a package that is imported from now on."""
    jaxtyping.jaxtyped = checked
    jaxtyping.install_import_hook(package, "tests.typecheck.check")


def choose(items: Iterable[pytest.Item]) -> None:
    """Marks the tests whose calls are checked: the same ones in every run."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for function, cases in functions.items():
        first = crc32(function.encode())
        for number, case in enumerate(cases, start=first):
            case.stash[CHECKED] = len(cases) < MANY or number % EACH == 0


def checked(fn: Any = None, *, typechecker: Any = None) -> Any:
    """What `jaxtyping.jaxtyped` does, once; as a decorator, with or without arguments."""
    if fn is None:
        return partial(checked, typechecker=typechecker)
    if inspect.isclass(fn):
        if is_dataclass(fn) and "__init__" in vars(fn):
            fn.__init__ = checked(fn.__init__)  # type: ignore[misc]
        return fn
    if isinstance(fn, classmethod | staticmethod):
        return type(fn)(checked(fn.__func__))
    if isinstance(fn, property):
        return property(*(each and checked(each) for each in (fn.fget, fn.fset, fn.fdel)))
    if not isinstance(fn, FunctionType) or fn.__code__ in MADE or not fn.__annotations__:
        return fn
    if INSIDE in fn.__qualname__:
        MADE.add(fn.__code__)
    return _check_calls(fn)


def _check_calls(fn: FunctionType) -> Any:
    made: list[Callable[..., Any]] = []

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if not Switch.on:
            return fn(*args, **kwargs)
        if not made:
            hints = _hints(fn)
            typed = _check_types(fn, hints)
            made.append(_remember_sizes(typed) if "jaxtyping" in str(hints) else typed)
        return made[0](*args, **kwargs)

    return call


def _check_types(fn: FunctionType, hints: dict[str, Any]) -> Any:
    copy = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = fn.__kwdefaults__, hints
    copy.__qualname__, copy.__module__ = fn.__qualname__, fn.__module__
    return check(copy)


def _remember_sizes(typed: Callable[..., Any]) -> Any:
    """For as long as a call lasts."""

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        push_shape_memo({})
        try:
            return typed(*args, **kwargs)
        finally:
            pop_shape_memo()

    return call


def _hints(fn: FunctionType) -> dict[str, Any]:
    """The types of a signature; those that only a type checker knows are any."""
    try:
        return get_type_hints(fn, include_extras=True)
    except Exception:  # such a name, or that of a class in a function's body
        return {name: _hint(fn, said) for name, said in fn.__annotations__.items()}


def _hint(fn: FunctionType, said: Any) -> Any:
    def only(x: Any) -> None: ...

    only.__annotations__ = {"x": said}
    try:
        return get_type_hints(only, fn.__globals__, include_extras=True)["x"]
    except Exception:
        return Any
