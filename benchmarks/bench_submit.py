"""How long submitting a sweep to Slurm takes, beside Hydra's own submitit launcher, in one run.

    python benchmarks/bench_submit.py [--points 1 50 200]

Needs what the Slurm tests need (root and Debian's Slurm packages); starts a private cluster and takes it down. Jobs are
held, so that nothing but the submission is measured. Hydra's launcher waits for its jobs, so it is ended as soon as the
queue holds all of them; both are timed from the start of the process to that moment. Composing is timed twice: by Hydra
itself, as a launcher does that has no composer of its own, and by pilotkit up to the refusal of the same sweep for a
partition that does not exist, which is told once every point is composed and checked. What is over the second is the
submission itself: the code that is kept, the points that are written, sbatch. It exits with 1 when that is more than
two seconds, which says something on a machine that is otherwise idle only. Processor seconds stand beside wall seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from machine import describe

MOST_SECONDS = 2.0
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "slurm"))
from cluster import Cluster  # noqa: E402

PLAIN = """
import hydra
@hydra.main(version_base="1.3", config_path={conf!r}, config_name="config")
def main(config):
    pass
if __name__ == "__main__":
    from pilotkit.config.store import register_schema
    register_schema()
    main()
"""
COMPOSE = """
import sys, time
import hydra
from pilotkit.config.store import CONFIG_NAME, conf_dir, register_schema
register_schema()
count = int(sys.argv[1])
with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
    started, used = time.perf_counter(), time.process_time()
    for index in range(count):
        hydra.compose(CONFIG_NAME, overrides=["stage=lock", f"train.micro_batch_size={{index + 1}}"])
    print(time.perf_counter() - started, time.process_time() - used)
""".replace("{{", "{").replace("}}", "}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs="+", default=[1, 50, 200])
    points = parser.parse_args().points
    # `timeout` ends us by this signal: the cluster is taken down all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    cluster = Cluster(folder / "c")
    try:
        cluster.start()
        environment = {**os.environ, **cluster.env, "PYTHONPATH": str(ROOT)}
        plain = folder / "plain.py"
        plain.write_text(PLAIN.format(conf=str(ROOT / "conf")))
        print(describe("hydra-core", "submitit", "hydra-submitit-launcher"))
        print("seconds (processor seconds)")
        print(f"{'points':>6}  {'pilotkit returns':>18}  {'composed, checked':>18}  {'over that':>14}", end="")
        print(f"  {'plain, all queued':>18}  {'Hydra composes':>18}")
        over = []
        for count in points:
            sweep = f"train.micro_batch_size=range(1,{count + 1})" if count > 1 else "train.micro_batch_size=1"
            ours = _time_ours(sweep, folder=folder, environment=environment)
            _clear(cluster)
            checked = _time_ours(sweep, "cluster.partition=nope", folder=folder, environment=environment)
            theirs = _time_plain(plain, sweep, count=count, folder=folder, environment=environment, cluster=cluster)
            _clear(cluster)
            composing = _time_composing(count, environment)
            difference = Taken(ours.wall - checked.wall, ours.processor - checked.processor)
            over.append(difference.wall)
            print(f"{count:>6}  {ours!s:>18}  {checked!s:>18}  {difference!s:>14}  {theirs!s:>18}  {composing!s:>18}")
        return int(max(over) > MOST_SECONDS)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Taken:
    """Wall seconds, and processor seconds of the process and its children."""

    wall: float
    processor: float

    def __str__(self) -> str:
        return f"{self.wall:.2f} ({self.processor:.2f})"


class _Watch:
    """From here on."""

    def __init__(self) -> None:
        self._started, self._used = time.perf_counter(), self._processor()

    def read(self) -> Taken:
        return Taken(time.perf_counter() - self._started, self._processor() - self._used)

    def _processor(self) -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


def _time_ours(sweep: str, *more: str, folder: Path, environment: dict[str, str]) -> Taken:
    watch = _Watch()
    command = [sys.executable, "-m", "pilotkit", "-m", "stage=lock", "cluster=slurm", sweep, *more]
    held = "+cluster.additional_parameters.hold=true"
    done = subprocess.run([*command, held], cwd=folder, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != (2 if more else 0):
        raise RuntimeError(done.stdout + done.stderr)
    return watch.read()


def _time_plain(
    script: Path, sweep: str, *, count: int, folder: Path, environment: dict[str, str], cluster: Cluster
) -> Taken:
    command = [sys.executable, str(script), "-m", "hydra/launcher=submitit_slurm", "stage=lock", sweep]
    held = "+hydra.launcher.additional_parameters.hold=true"
    watch = _Watch()
    process = psutil.Popen(
        [*command, held], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while len(cluster.run("squeue", "-h", "-r", "-o", "%i").stdout.split()) < count:
            if process.poll() is not None:
                raise RuntimeError(f"the plain launcher ended with {process.returncode}")
            time.sleep(0.2)
        used = process.cpu_times()
        return Taken(watch.read().wall, used.user + used.system + used.children_user + used.children_system)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _time_composing(count: int, environment: dict[str, str]) -> Taken:
    """Its own figures, from after the imports."""
    done = subprocess.run(
        [sys.executable, "-c", COMPOSE, str(count)], env=environment, check=True, capture_output=True, text=True
    )
    wall, processor = done.stdout.split()
    return Taken(float(wall), float(processor))


def _clear(cluster: Cluster) -> None:
    jobs = set(cluster.run("squeue", "-h", "-o", "%A").stdout.split())
    if jobs:
        cluster.run("scancel", *jobs)


if __name__ == "__main__":
    raise SystemExit(main())
