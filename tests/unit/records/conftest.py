"""A small record to write."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pilotkit.records.record import Record


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """`make_record(run_id=..., ...)`: a small record with the given fields changed."""

    def make(**changes: object) -> Record:
        fields: dict[str, object] = {
            "run_id": "20260131-235959-1a2b3c",
            "stage": "measure",
            "status": "ok",
            "started_at": "2026-01-31T23:59:59+00:00",
            "metrics": {"step_seconds": 0.25},
            "origins": {"step_seconds": "measured"},
        }
        return Record(**{**fields, **changes})  # type: ignore[arg-type]  # plain values, checked by the tests

    return make
