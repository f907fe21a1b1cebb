"""Where the nodes of a pilot meet: what is taken, and the words for what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.config.nodes import check_nodes, parse_endpoint
from pilotkit.config.schema import PilotConfig

SOUND = {
    "stage": "pilot",
    "parallelism.num_nodes": 2,
    "cluster.rdzv_endpoint": "node-1:29400",
    "cluster.node_rank": 1,
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1:29400", ("10.0.0.1", 29400)),
        ("node-1.cluster:29400", ("node-1.cluster", 29400)),
        ("[fd00::1]:29400", ("fd00::1", 29400)),
        ("fd00::1:29400", None),
        ("node-1", None),
        (":29400", None),
    ],
)
def test_endpoints(text: str, found: tuple[str, int] | None) -> None:
    assert parse_endpoint(text) == found


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({}, []),
        ({"cluster.node_rank": 2}, ["cluster.node_rank"]),
        ({"cluster.rdzv_endpoint": None}, ["cluster.node_rank"]),
        ({"cluster.rdzv_endpoint": "node-1"}, ["cluster.rdzv_endpoint"]),
        ({"cluster.rdzv_endpoint": "node-1:80"}, ["cluster.rdzv_endpoint"]),
        ({"cluster.rdzv_endpoint": "node-1:65535"}, ["cluster.rdzv_endpoint"]),
        ({"parallelism.num_nodes": 1}, ["cluster.rdzv_endpoint"]),
        ({"stage": "measure"}, ["cluster.rdzv_endpoint"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_is_refused(changed: Callable[..., PilotConfig], values: dict[str, Any], keys: list[str]) -> None:
    assert [problem.key for problem in check_nodes(changed({**SOUND, **values}))] == keys
