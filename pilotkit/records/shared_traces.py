"""What the points of a sweep share: one worker's traces, for all that differ in micro-batch size and length alone.

<sweep folder>/traces/<digest>/shapes.json   the shapes of these points, written before the first of them runs
<sweep folder>/traces/<digest>/<B>x<S>.json  what the first of them found for each of the others

`digest` tells points with another configuration apart (`config.identity.traced_digest`). Nothing here is needed
for a point to run: what is missing or cannot be read, the point finds out itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pilotkit.records import atomic

FOLDER = "traces"
Shape = tuple[int, int]
"""Micro-batch size and sequence length."""


def write_shapes(sweep_dir: Path, digest: str, shapes: Sequence[Shape]) -> None:
    """Publish which shapes the points of one kind have."""
    folder = sweep_dir / FOLDER / digest
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_json(folder / "shapes.json", sorted(set(shapes)))


def read_shapes(sweep_dir: Path, digest: str) -> list[Shape]:
    """The shapes of all points of this kind; empty where there is but one, which shares nothing."""
    plain = _read(sweep_dir / FOLDER / digest / "shapes.json") or []
    return [(batch, length) for batch, length in plain]


def write_found(sweep_dir: Path, digest: str, shape: Shape, found: dict[str, Any]) -> None:
    """Keep what was found for a shape: `result` as its own worker would give it, and `run_id`, whose it is."""
    atomic.write_json(_file(sweep_dir, digest, shape), found)


def read_found(sweep_dir: Path, digest: str, shape: Shape) -> dict[str, Any] | None:
    """What another point has found for this one."""
    found = _read(_file(sweep_dir, digest, shape))
    return found if isinstance(found, dict) and {"result", "run_id"} <= found.keys() else None


def _file(sweep_dir: Path, digest: str, shape: Shape) -> Path:
    return sweep_dir / FOLDER / digest / f"{shape[0]}x{shape[1]}.json"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
