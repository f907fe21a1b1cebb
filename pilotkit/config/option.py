"""What a type cannot say of a field: its range, its closed choice. `pilotkit.config.validate` enforces both."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from omegaconf import MISSING


def option(
    default: Any = MISSING,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A field with a closed choice or a range; `ge`, `gt` and `le` are the usual bounds, in the field's own unit."""
    metadata = {"ge": ge, "gt": gt, "le": le, "choices": choices}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)
