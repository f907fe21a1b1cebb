"""What a stage works with, and what it hands back. No stage touches another one: earlier records are its evidence."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotkit.config.batch import BatchArithmetic, batch_arithmetic
from pilotkit.config.nodes import parse_endpoint
from pilotkit.config.schema import PilotConfig
from pilotkit.cpus import UsableCpus, usable_cpus
from pilotkit.errors import ConfigError, Problem, StageRefused
from pilotkit.launch.devices import Devices, find_devices
from pilotkit.launch.environment import WorkerEnvironment
from pilotkit.launch.nodes import Nodes, find_nodes
from pilotkit.launch.outcome import Outcome
from pilotkit.launch.traced import TracedScript, run_traced
from pilotkit.launch.worker import run_script, run_worker
from pilotkit.records.record import Failure, Metrics, PhaseRun, Record
from pilotkit.records.run_dir import RunDir
from pilotkit.stages.console import Console
from pilotkit.units import format_bytes, format_seconds


@dataclass(frozen=True)
class StageResult:
    """What a stage found; `status` as in a record."""

    status: str = "ok"
    metrics: Metrics = field(default_factory=Metrics)
    details: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    problem: Failure | None = None


@dataclass
class Run:
    """One run of one stage. `evidence` holds the newest record of each stage that speaks of the same intended run."""

    stage: str
    config: PilotConfig
    run_dir: RunDir
    launch_dir: Path
    console: Console
    evidence: Mapping[str, Record]
    overrides: list[str]
    page: Path
    """Where the page of stage `report` goes."""
    phases: list[PhaseRun] = field(default_factory=list)
    threads: dict[str, Any] = field(default_factory=dict)
    sweep_dir: Path | None = None
    """Folder of the sweep that this run is a point of."""
    drift: str = ""
    """What is no longer as it was locked, in a sentence. For stage `plan`; the others tell it themselves."""

    @property
    def output_dir(self) -> Path:
        return Path(self.config.output_dir)

    @property
    def arithmetic(self) -> BatchArithmetic:
        return batch_arithmetic(self.config)

    def devices(self) -> Devices:
        """The devices of this node. Raises StageRefused when they are not those of the hardware option."""
        hardware = self.config.hardware
        devices = find_devices(
            hardware=hardware.name,
            device_type=hardware.device_type,
            device_count=hardware.device_count,
            name_pattern=hardware.device_name_pattern,
            launch_dir=self.launch_dir,
        )
        if devices.problem:
            raise StageRefused(devices.problem)
        return devices

    def nodes(self) -> Nodes | None:
        """The nodes that this run has; None when it is one, whatever the intended run has."""
        cluster = self.config.cluster
        return find_nodes(
            count=self.config.parallelism.num_nodes,
            endpoint=parse_endpoint(cluster.rdzv_endpoint) if cluster.rdzv_endpoint else None,
            node_rank=cluster.node_rank,
        )

    def work(
        self,
        phase: str,
        *,
        nproc: int = 1,
        torchrun: bool = False,
        timeout_seconds: float | None = None,
        can_save: bool = False,
        nodes: Nodes | None = None,
        computes: bool = True,
    ) -> Outcome:
        """Run one phase in fresh processes, show how far it is, and keep how it ended.

        One that does not compute gets one thread.

        A phase that `can_save` is asked to before an interruption ends it, and an earlier attempt that got through it
        has answered it for all. Raises ConfigError when the worker found a mistake in the user's configuration.
        """
        if can_save:
            done = self._done_before(phase)
            if done is not None:
                return done
        cpus = usable_cpus()
        title = f"{self.stage}: {phase}" if phase != self.stage else phase
        with self.console.progress(title) as on_progress:
            outcome, environment = run_worker(
                self.run_dir,
                phase=phase,
                nproc=nproc,
                torchrun=torchrun,
                # One process alone gets what each of several would: their speeds are compared.
                shares=max(nproc, self.config.hardware.device_count) if computes else cpus.count,
                usable_cpus=cpus.count,
                launch_dir=self.launch_dir,
                timeout_seconds=timeout_seconds or self.config.phase_timeout_seconds,
                on_progress=on_progress,
                can_save=can_save,
                nodes=nodes,
            )
        return self._keep(phase, outcome, environment)

    def _done_before(self, phase: str) -> Outcome | None:
        """What an earlier attempt of this run found; what one that was ended has left makes room for the next."""
        folder = self.run_dir.phase(phase)
        result = folder.read_result()
        if result is not None and "stopped_at" not in result:
            self.console.line(f"  {phase}: done in an earlier attempt")
            return Outcome("ok", 0.0, result=result)
        folder.set_aside()
        return None

    def work_script(self, *, nproc: int, timeout_seconds: float, nodes: Nodes | None = None) -> Outcome:
        """Run the user's own script (`pilot.script`) under torchrun, as phase `script`, on all `nodes`."""
        options, cpus = self.config.pilot, usable_cpus()
        assert options.script is not None
        with self.console.progress(f"{self.stage}: {Path(options.script).name}"):
            outcome, environment = run_script(
                self.run_dir,
                phase="script",
                script=Path(options.script),
                args=options.args,
                tokens_per_step=options.tokens_per_step,
                nproc=nproc,
                shares=max(nproc, self.config.hardware.device_count),
                usable_cpus=cpus.count,
                launch_dir=self.launch_dir,
                timeout_seconds=timeout_seconds,
                nodes=nodes,
            )
        return self._keep("script", outcome, environment)

    def work_traced(
        self, script: TracedScript, phase: str, *, checkpoints: str, nproc: int, kill_after_step: int | None = None
    ) -> Outcome:
        """Run the user's own script (`restore.script`) as one start of the proof; `checkpoints` names their folder."""
        cpus = usable_cpus()
        with self.console.progress(f"{self.stage}: {phase}"):
            outcome, environment = run_traced(
                self.run_dir,
                script,
                phase=phase,
                checkpoints=self.run_dir.checkpoints / checkpoints,
                kill_after_step=kill_after_step,
                nproc=nproc,
                shares=max(nproc, self.config.hardware.device_count),
                usable_cpus=cpus.count,
                launch_dir=self.launch_dir,
                timeout_seconds=self.config.phase_timeout_seconds,
            )
        return self._keep(phase, outcome, environment)

    def _keep(self, phase: str, outcome: Outcome, environment: WorkerEnvironment) -> Outcome:
        self.threads = {**_threads(usable_cpus()), **environment.to_dict()}
        self.phases.append(PhaseRun(phase, outcome.wall_seconds, outcome.status))
        self.console.line(f"  {phase}: {outcome.status.replace('_', ' ')} in {format_seconds(outcome.wall_seconds)}")
        if outcome.interruption is not None:
            raise outcome.interruption
        if outcome.status == "ok" and self.run_dir.phase(phase).attempts():
            # They have served: the phase is not started again.
            shutil.rmtree(self.run_dir.checkpoints / phase, ignore_errors=True)
        _raise_config_problem(outcome, self.run_dir, phase)
        return outcome


def not_ok(run: Run, outcome: Outcome, *, details: dict[str, Any] | None = None) -> StageResult:
    """The result of a stage whose worker did not get through; out of memory is told with its sizes."""
    metrics = Metrics()
    failure = outcome.failure
    if outcome.out_of_memory is not None and failure is not None:
        limit = run.config.hardware.memory_bytes
        requested = outcome.out_of_memory.get("requested_bytes")
        metrics.add("given", memory_limit_bytes=limit)
        metrics.add("measured", requested_bytes=requested)
        asked = f"; {format_bytes(requested)} more was asked for" if requested else ""
        summary = f"{failure.summary}: the limit is {format_bytes(limit)}{asked}"
        failure = dataclasses.replace(failure, summary=summary)
    return StageResult(outcome.status, metrics, {**(details or {}), "threads": run.threads}, problem=failure)


def _threads(cpus: UsableCpus) -> dict[str, Any]:
    return {"usable_cpus": cpus.count, "usable_cpus_source": cpus.source}


def _raise_config_problem(outcome: Outcome, run_dir: RunDir, phase: str) -> None:
    """A factory that cannot be imported, text that is too short: the worker finds it, the user has to mend it."""
    if outcome.status != "failed":
        return
    found = [error for error in run_dir.phase(phase).errors() if error.get("problems")]
    if found:
        raise ConfigError([Problem(**problem) for problem in found[0]["problems"]], found_by=phase)
