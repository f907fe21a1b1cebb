"""Collectives are checked by value: one that says it is done and has done something else, and one that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pilotkit.device import open_device
from pilotkit.worker.qualify.collectives import check_collectives

# The names before torch 2.13, and since.
GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def found(strategy: str, dtype: torch.dtype = torch.float32) -> dict[str, tuple[str, str]]:
    rows = check_collectives(open_device("cpu", local_rank=0), strategy=strategy, dtype=dtype)
    assert {row.check for row in rows} == {"collective"}
    return {row.subject: (row.verdict, row.note) for row in rows}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_right_passes(dtype: torch.dtype) -> None:
    rows = found("fsdp", dtype)
    name = str(dtype).removeprefix("torch.")
    assert rows[f"all_gather {name}"] == rows[f"reduce_scatter {name}"] == ("PASS", "right on 1 ranks")


@pytest.mark.parametrize(
    ("collective", "call"),
    [
        ("broadcast", "broadcast"),
        ("all_gather", GATHER),
        ("reduce_scatter", SCATTER),
        ("all_to_all", "all_to_all_single"),
    ],
)
def test_wrong_values_are_found(monkeypatch: pytest.MonkeyPatch, collective: str, call: str) -> None:
    real = getattr(dist, call)

    def wrong(target: torch.Tensor, *others: Any, **more: Any) -> None:
        real(target, *others, **more)
        target[-1] += 1

    monkeypatch.setattr(dist, call, wrong)
    rows = found("fsdp")
    assert {name for name, (verdict, _) in rows.items() if verdict == "FAIL"} == {f"{collective} float32"}
    assert rows[f"{collective} float32"][1] == "wrong values on 1 of 1 ranks"


def test_one_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, GATHER, lambda target, source: target.zero_())
    assert found("fsdp")["all_gather float32"] == ("FAIL", "wrong values on 1 of 1 ranks")


@pytest.mark.parametrize(
    ("strategy", "verdict", "words"),
    [
        ("fsdp", "FAIL", "RuntimeError: no such collective in this build"),
        ("ddp", "NOT RUN", "RuntimeError: no such collective in this build, which strategy ddp does not use"),
    ],
)
def test_one_that_is_missing_matters_to_those_who_need_it(
    monkeypatch: pytest.MonkeyPatch, strategy: str, verdict: str, words: str
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such collective in this build")

    monkeypatch.setattr(dist, SCATTER, missing)
    assert found(strategy)["reduce_scatter float32"] == (verdict, words)
