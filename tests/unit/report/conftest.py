"""Sample records for the tests of the report."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def sample() -> dict[str, Any]:
    """Everything that `sample.py` beside this file defines."""
    return runpy.run_path(str(Path(__file__).with_name("sample.py")))
