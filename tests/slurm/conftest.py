"""One real cluster for all Slurm tests of a session, and a command line that talks to it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster import Cluster, missing_programs

ROOT = Path(__file__).resolve().parents[2]

MODEL = '''
"""A model that takes milliseconds, and ends as it is told."""
import os, signal, sys, time
import torch

class Out:
    def __init__(self, loss):
        self.loss = loss

class Tiny(torch.nn.Module):
    def __init__(self, slow, nap, most_rows):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.slow, self.nap, self.most_rows = slow, nap, most_rows

    def forward(self, input_ids, **_):
        if self.most_rows and len(input_ids) > self.most_rows:
            torch.empty(2**45)  # more than any machine has
        # Ranks of a group take their time for as long as the test wants it.
        if self.slow and os.environ.get("WORLD_SIZE") == "2" and os.path.exists(self.slow):
            time.sleep(self.nap)
        return Out(self.layer(input_ids[:, :4].float()).pow(2).mean())

def build(how="ok", seconds=120.0, once="", slow="", nap=0.1, most_rows=0, **_):
    if how == "raise":
        raise ValueError("bad row 17")
    if how == "exit":
        sys.exit(3)
    if how == "grow":
        held = bytearray(b"1") * 2**30
        time.sleep(30)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sleep" and not (once and os.path.exists(once)):
        if once:
            open(once, "w").close()
        time.sleep(seconds)
    return Tiny(slow, nap, most_rows)
'''

TINY = (
    "stage=measure",
    "cluster=slurm",
    "model=custom",
    "model.factory=endings:build",
    "train.micro_batch_size=1",
    "train.seq_len=32",
    "measure.num_warmup_steps=1",
    "measure.num_measured_steps=3",
    "cluster.array_parallelism=3",
    "cluster.time_minutes=10",
)


@contextlib.contextmanager
def running_cluster(**options: Any) -> Iterator[Cluster]:
    """A cluster of its own, with the options of `Cluster`; its folder goes with it. Fails the test without Slurm."""
    missing = missing_programs(accounting=options.get("has_accounting", False))
    if missing:
        packages = "slurmctld slurmd slurm-client munge slurmdbd mariadb-server-core mariadb-client-core"
        pytest.fail(f"{', '.join(missing)} missing: apt-get install {packages}", pytrace=False)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: a socket's path has at most 107 bytes
    found = Cluster(folder, **options)
    try:
        found.start()
        yield found
    finally:
        found.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as found:
        yield found


@dataclass
class Lab:
    """A working folder with the tiny model in it, and the cluster."""

    cluster: Cluster
    folder: Path

    def pilotkit(
        self, *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pilotkit", *arguments],
            cwd=cwd or self.folder,
            env=self.environment(env),
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160", **self.cluster.env, **(more or {})}

    def submit(self, *arguments: str, **options: Any) -> Path:
        """Submit a sweep of the tiny model; returns its folder."""
        done = self.pilotkit("-m", *TINY, *arguments, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.newest()

    def newest(self) -> Path:
        return max(self.folder.glob("outputs/*/sweeps/*"), key=lambda path: path.name)

    def manifest(self, sweep: Path) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads((sweep / "sweep.json").read_text())
        return plain

    def array_id(self, sweep: Path) -> str:
        return str(self.manifest(sweep)["arrays"][0]["job_id"])

    def truths(self, sweep: Path) -> list[tuple[str, str]]:
        """(status, cause) of every point, as a login node sees them now."""
        code = (
            "import json, sys; from pathlib import Path; from pilotkit.launch.follow import find_truths; "
            "from pilotkit.records.sweeps import read_sweep; folder = Path(sys.argv[1]); "
            "print(json.dumps([(t.status, t.cause) for t in find_truths(folder, read_sweep(folder))[0]]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(sweep)], env=self.environment(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return [(status, cause) for status, cause in json.loads(done.stdout)]

    def until(self, sweep: Path, done: Callable[[list[str]], bool], *, seconds: float = 60) -> list[tuple[str, str]]:
        """Look until the statuses please; fails with the last ones."""
        end = time.monotonic() + seconds
        while True:
            truths = self.truths(sweep)
            if done([status for status, _ in truths]):
                return truths
            if time.monotonic() > end:
                log = (self.cluster.folder / "log" / "slurmctld.log").read_text()
                pytest.fail(f"after {seconds} s: {truths}\n{log[-3000:]}", pytrace=False)
            time.sleep(0.5)

    def until_final(self, sweep: Path, *, seconds: float = 60) -> list[tuple[str, str]]:
        return self.until(
            sweep, lambda found: not any(status in ("pending", "running") for status in found), seconds=seconds
        )

    def pid_of_job(self, sweep: Path, index: int) -> int:
        """The process id of a running point's driver, which is the batch script."""
        point = json.loads((sweep / str(index) / "point.json").read_text())
        record = json.loads((Path(point["run_dir"]) / "record.json").read_text())
        return int(record["provenance"]["driver"]["pid"])


@pytest.fixture
def lab(cluster: Cluster, tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "endings.py").write_text(MODEL)
    yield Lab(cluster, tmp_path)
    jobs = cluster.run("squeue", "--noheader", "--format=%A").stdout.split()
    if jobs:
        cluster.run("scancel", *sorted(set(jobs)))
    end = time.monotonic() + 20
    while cluster.run("squeue", "-h", "-t", "R,CG,CF,PD").stdout and time.monotonic() < end:
        time.sleep(0.2)


Told = Callable[[str, Sequence[tuple[str, str]], "float | None"], None]


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Told:
    """`told("scancel", truths, started)`: a line for the table of faults. None: the record was there with the end."""
    lines: list[str] = []

    def note(event: str, truths: Sequence[tuple[str, str]], started: float | None) -> None:
        seconds = None if started is None else round(time.monotonic() - started, 1)
        ends = Counter(f"`{status}`{f': {cause}' if cause else ''}" for status, cause in truths)
        words = "; ".join(f"{count} x {end}" if len(truths) > 1 else end for end, count in ends.items())
        lines.append(json.dumps({"event": event, "truth": words, "seconds": seconds}))
        record_property(f"fault-{len(lines)}", lines[-1])

    return note
