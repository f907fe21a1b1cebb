"""Stage `budget`: a ledger over the records, and whether this machine can feed the loaders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.cpus import UsableCpus
from pilotkit.records.record import Record
from pilotkit.stages import budget, loaders
from pilotkit.stages.run import Run

MakeRun = Callable[..., Run]


@pytest.fixture(autouse=True)
def _four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "usable_cpus", lambda: UsableCpus(4, "affinity mask"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def measured(**metrics: float) -> dict[str, Record]:
    return {"measure": Record("id", "measure", "ok", "", metrics=metrics)}


@pytest.mark.parametrize(
    ("exported", "values", "num_threads", "set_by"),
    [
        (None, {}, 2, "pilotkit"),
        ("3", {}, 3, "OMP_NUM_THREADS in the environment"),
        ("0", {}, 2, "pilotkit"),
        # One process gets the share that a run on all devices would give it, as the stages that measure do.
        (None, {"parallelism.nproc_per_node": 1, "hardware.device_count": 4}, 1, "pilotkit"),
    ],
    ids=["shared", "exported", "no number", "one of four"],
)
def test_threads_are_those_that_workers_get(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    exported: str | None,
    values: dict[str, Any],
    num_threads: int,
    set_by: str,
) -> None:
    if exported is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", exported)
    threads = budget.run(make_run("budget", values)).details["threads"]
    assert (threads["num_threads"], threads["threads_set_by"]) == (num_threads, set_by)
    assert (threads["usable_cpus"], threads["usable_cpus_source"]) == (4, "affinity mask")


def test_loaders_that_outnumber_the_cores(make_run: MakeRun, said: Callable[[Run], list[str]]) -> None:
    run = make_run("budget", {"data.num_workers": 3})
    warning = (
        "6 loader processes (2 ranks x data.num_workers 3) share 4 usable cores (affinity mask); "
        "data.num_workers=2 would fit"
    )
    assert budget.run(run).details["warnings"] == [warning]
    assert said(run) == [f"  note: {warning}"]


@pytest.mark.parametrize(
    ("evidence", "origin", "batch"),
    # 2 ranks x 2 workers x 2 batches = 8 batches; unmeasured: 4 rows x 128 tokens x 16 bytes = 8 KiB
    [({}, "projected", 8192), (measured(batch_bytes=1024), "measured", 1024)],
    ids=["nothing measured", "measured"],
)
def test_shared_memory(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, evidence: dict[str, Record], origin: str, batch: int
) -> None:
    run = make_run("budget", {"data.num_workers": 2}, evidence)
    monkeypatch.setattr(loaders, "shared_memory_free_bytes", lambda: 8 * batch)
    found = budget.run(run)
    assert found.status == "ok"
    assert found.metrics.values["shared_memory_needed_bytes"] == 8 * batch
    assert found.metrics.origins["shared_memory_needed_bytes"] == origin
    monkeypatch.setattr(loaders, "shared_memory_free_bytes", lambda: 8 * batch - 1)
    found = budget.run(run)
    assert found.status == "failed"
    assert found.problem is not None
    assert found.problem.summary.startswith("shared memory is too small for the loaders: ")
    assert found.problem.cause.startswith("2 ranks x data.num_workers 2 x data.prefetch_factor 2 x ")


def test_the_machine_has_no_such_place(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "shared_memory_free_bytes", lambda: None)
    found = budget.run(make_run("budget", {"data.num_workers": 2}))
    assert (found.status, "shared_memory_free_bytes" in found.metrics.values) == ("ok", False)


def test_the_ledger_speaks_of_the_intended_run(make_run: MakeRun) -> None:
    # 4 rows x 128 tokens = 512 tokens a step; 512 000 tokens are 1000 steps of half a second
    single = {"parallelism.strategy": "single", "parallelism.nproc_per_node": 1}
    run = make_run("budget", {**single, "train.total_tokens": 512_000}, measured(step_seconds=0.5))
    found = budget.run(run)
    assert found.metrics.values["num_steps"] == 1000
    assert found.metrics.values["tokens_per_step"] == 512
    (steps,) = [line for line in found.details["ledger"] if line["part"] == "steps"]
    assert (steps["count"], steps["each_seconds"], steps["seconds"]) == (1000, 0.5, 500.0)
    assert found.metrics.values["step_total_seconds"] == 500.0


def test_what_the_loaders_deliver_against_what_devices_take(make_run: MakeRun, workers: Any) -> None:
    # One rank's loader: 1,000 tokens/s, two ranks 2,000; a device takes 512 tokens in 0.5 - 0.1 s, 1,280 a second.
    figures = {"step_seconds": 0.5, "data_wait_seconds": 0.1, "tokens_per_step": 512.0}
    found = budget.run(make_run("budget", {}, measured(**figures, loader_tokens_per_second=1000.0)))
    assert workers.calls == []
    assert found.metrics.values["supply_tokens_per_second"] == 2000.0
    assert found.metrics.origins["supply_tokens_per_second"] == "projected"
    assert found.metrics.values["demand_tokens_per_second"] == pytest.approx(1280.0)
    assert found.details["supply"]["max_devices_per_node"] == 1
    assert budget.run(make_run("budget", {}, measured(**figures))).details["supply"] is None


def test_the_proposed_interval_stands_beside_the_configured_one(make_run: MakeRun) -> None:
    # Save 2 s; the fleet: 0.5 a node and day on one node: sqrt(2 x 2 x 172,800) = 831 s, 1,663 steps of half a second.
    restore = Record("id", "restore", "ok", "", metrics={
        "world_size": 1.0, "checkpoint_save_seconds": 2.0, "restart_seconds": 30.0,
    })  # fmt: skip
    values = {
        "parallelism.strategy": "single", "parallelism.nproc_per_node": 1, "failures.per_node_day": 0.5,
        "failures.small_job_factor": 1.0,
    }  # fmt: skip
    found = budget.run(make_run("budget", values, {**measured(step_seconds=0.5), "restore": restore}))
    interval = found.details["interval"]
    assert (interval["configured_steps"], interval["proposed_steps"]) == (1000, 1663)
    assert interval["proposed_lost_share"] < interval["configured_lost_share"]
    assert found.metrics.values["proposed_interval_seconds"] == pytest.approx(831.4, abs=0.1)


def test_a_copy_that_cannot_arrive_is_a_note(make_run: MakeRun, tmp_path: Any) -> None:
    folder = tmp_path / "restore-run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "shard").write_bytes(b"x" * 1000)
    (tmp_path / "file").write_text("", encoding="utf-8")
    restore = Record("id", "restore", "ok", "", folder=str(folder))
    run = make_run("budget", {"budget.copy_out_to": str(tmp_path / "file")}, {"restore": restore})
    found = budget.run(run)
    assert found.status == "ok"
    assert any("nothing can be copied to" in note for note in found.details["warnings"])
    run = make_run(
        "budget", {"budget.copy_out_to": str(tmp_path / "away"), "prices.copies_out": 2}, {"restore": restore}
    )
    found = budget.run(run)
    assert found.metrics.values["copy_out_bytes"] == 1000
    assert list((tmp_path / "away").iterdir()) == []
