"""A run of a stage whose workers are stand-ins: each phase has the outcome that the test gives it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pilotkit.config.schema import PilotConfig
from pilotkit.cpus import UsableCpus
from pilotkit.launch.devices import Devices
from pilotkit.launch.environment import WorkerEnvironment
from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Record
from pilotkit.records.run_dir import RunDir
from pilotkit.stages import run as stages_run
from pilotkit.stages.console import Console
from pilotkit.stages.run import Run


@dataclass
class Workers:
    """`outcomes` by phase; `calls` is what was started, with how many processes, under torchrun or not."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    calls: list[tuple[str, int, bool]] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)
    on_start: Callable[[str, RunDir], None] = lambda _phase, _run_dir: None

    def run_worker(self, run_dir: RunDir, **given: Any) -> tuple[Outcome, WorkerEnvironment]:
        self.calls.append((given["phase"], given["nproc"], given["torchrun"]))
        self.shares.append(given["shares"])
        given["on_progress"]({"label": given["phase"], "done": 1, "total": 2})
        self.on_start(given["phase"], run_dir)
        environment = WorkerEnvironment({}, ("RANK",), num_threads=2, threads_set_by="pilotkit")
        return self.outcomes[given["phase"]], environment


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    found = Workers()
    monkeypatch.setattr(stages_run, "run_worker", found.run_worker)
    monkeypatch.setattr(stages_run, "usable_cpus", lambda: UsableCpus(4, "affinity mask"))
    return found


@pytest.fixture
def visible(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`visible(4)`: that many devices are there; `visible(0, problem=...)`: none that may be used."""

    def set_visible(count: int, *, problem: str | None = None) -> None:
        monkeypatch.setattr(stages_run, "find_devices", lambda **_: Devices(count, problem=problem))

    return set_visible


@pytest.fixture
def make_run(tmp_path: Path, workers: Workers, changed: Callable[..., PilotConfig]) -> Callable[..., Run]:
    """`make_run("measure", {"train.seq_len": 64}, evidence={})`: a run with a folder of its own."""

    def make(stage: str, values: dict[str, Any] | None = None, evidence: Mapping[str, Record] | None = None) -> Run:
        config = changed({"output_dir": str(tmp_path / "out"), **(values or {})})
        run_dir = RunDir.create(tmp_path / "out", name="study", stage=stage)
        return Run(
            stage=stage,
            config=config,
            run_dir=run_dir,
            launch_dir=tmp_path,
            console=Console(io.StringIO()),
            evidence=evidence or {},
            overrides=[],
            page=run_dir.page,
        )

    return make


def said(run: Run) -> list[str]:
    """The lines that were printed."""
    stream = run.console._rich.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue().splitlines()


@pytest.fixture(name="said")
def said_fixture() -> Callable[[Run], list[str]]:
    return said
