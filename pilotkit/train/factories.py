"""Find what a user names as `package.module:callable`. Called by the worker for models and data."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import reduce
from typing import Any, NoReturn

from pilotkit.errors import ConfigError, Problem

FORM = "package.module:callable"


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
