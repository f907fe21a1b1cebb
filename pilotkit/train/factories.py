"""Find what a user names as `package.module:callable`. Called by the worker for models and data."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import Any, NoReturn

from pilotkit.errors import ConfigError, Problem

FORM = "package.module:callable"


def bound(path: str, *, section: str, kwargs: Mapping[str, Any], **own: Any) -> Callable[..., Any]:
    """The callable of `<section>.factory` with the configuration's `kwargs`, which go before pilotkit's `own`.

    Raises ConfigError as `resolve` does, and for every argument that it does not take, or needs and nobody gives.
    """
    factory = resolve(path, key=f"{section}.factory")
    problems = list(_argument_problems(factory, path, section=section, kwargs=kwargs, own=own))
    if problems:
        raise ConfigError(problems)
    return partial(factory, **{**own, **kwargs})


def _argument_problems(
    factory: Callable[..., Any], path: str, *, section: str, kwargs: Mapping[str, Any], own: Mapping[str, Any]
) -> Iterator[Problem]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # one written in C does not tell
        return
    named = {item.name: item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)}
    if not any(item.kind is item.VAR_KEYWORD for item in parameters):
        takes = ", ".join(name for name in named if name not in own) or "none"
        for name in kwargs:
            if name not in named:
                fix = f"drop {section}.kwargs.{name}, or let {path} take it"
                yield Problem(f"{section}.kwargs.{name}", kwargs[name], f"an argument of {path}: {takes}", fix)
        lacking = ", ".join(name for name in own if name not in named and name not in kwargs)
        if lacking:
            fix = f"pilotkit calls it with {', '.join(own)}; add {lacking} to its arguments, or **kwargs"
            yield Problem(f"{section}.factory", path, f"a callable that takes {', '.join(own)}", fix)
    for name, item in named.items():
        if item.default is item.empty and name not in kwargs and name not in own:
            fix = f"add {section}.kwargs.{name}=..., which {path} cannot be called without"
            yield Problem(f"{section}.kwargs.{name}", "not given", "a value", fix)


def resolve(path: str, *, key: str) -> Callable[..., Any]:
    """The callable that `path` names; `key` is the dotted option it came from, for the message.

    The module is imported, so its top level runs. Raises ConfigError when the text has another form, when
    there is no such module or attribute, and when the module's own imports fail (with their text).
    """
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute or ":" in attribute:
        _refuse(key, path, allowed=FORM, fix="write the module, a colon, and the name of the callable in it")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        _refuse_import(error, key=key, path=path, module_name=module_name)
    try:
        found = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        public = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        _refuse(
            key,
            path,
            allowed=f"a callable of {module_name}: {', '.join(public) or 'it has none'}",
            fix=f"{module_name} has no {attribute}; name one of these, or add it",
        )
    if not callable(found):
        _refuse(
            key, path, allowed="a callable", fix=f"{attribute} is a {type(found).__name__}; name a function or class"
        )
    result: Callable[..., Any] = found
    return result


def _refuse_import(error: ImportError, *, key: str, path: str, module_name: str) -> NoReturn:
    """Tell a module that is not there from one that is there and whose own imports fail."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
        fix = f"there is no module {missing}; start pilotkit in the folder that holds it, or install its package"
        _refuse(key, path, allowed="a module that can be imported", fix=fix, cause=error)
    fix = f"importing {module_name} failed: {error}"
    _refuse(key, path, allowed="a module whose own imports succeed", fix=fix, cause=error)


def _refuse(key: str, path: str, *, allowed: str, fix: str, cause: Exception | None = None) -> NoReturn:
    raise ConfigError([Problem(key, path, allowed, fix)]) from cause
