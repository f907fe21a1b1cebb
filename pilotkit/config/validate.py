"""Ranges and closed choices of single values, as `option()` left them on the fields. Returns problems, raises none.

Called by `pilotkit.config.load`; `check_value` also by `pilotkit.config.overrides`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pilotkit.errors import Problem


def check_ranges(section: Any, *, prefix: str = "") -> list[Problem]:
    """Walk the dataclasses and compare every value with its `option()` metadata."""
    problems: list[Problem] = []
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            problems += check_ranges(value, prefix=f"{key}.")
        else:
            problem = check_value(key, value, field.metadata)
            problems += [problem] if problem else []
    return problems


def check_value(key: str, value: Any, metadata: Any) -> Problem | None:
    """Compare one value with the metadata that `option()` left on its field."""
    if value is None or not metadata:
        return None
    choices = metadata.get("choices")
    if choices:
        if value in choices:
            return None
        return Problem(key, value, "one of " + ", ".join(choices), f"for example {key}={choices[0]}")
    bounds = {"ge": ">=", "gt": ">", "le": "<="}
    given = {name: metadata[name] for name in bounds if metadata.get(name) is not None}
    sound = {
        "ge": lambda bound: value >= bound,
        "gt": lambda bound: value > bound,
        "le": lambda bound: value <= bound,
    }
    if all(sound[name](bound) for name, bound in given.items()):
        return None
    allowed = " and ".join(f"{bounds[name]} {bound}" for name, bound in given.items())
    return Problem(key, value, f"a number {allowed}", f"give {key} a value in that range")
