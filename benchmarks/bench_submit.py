"""How long submitting a sweep to Slurm takes, beside Hydra's own submitit launcher, in one run.

    python benchmarks/bench_submit.py [--points 1 50 200]

Needs what the Slurm tests need (root and Debian's Slurm packages); starts a private cluster and takes it down. Jobs are
held, so that nothing but the submission is measured. Hydra's launcher waits for its jobs, so it is ended as soon as the
queue holds all of them; both are timed from the start of the process to that moment. Composing alone is timed too: the
same points through Hydra's own composition, once, which is what any launcher has to do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe

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
    started = time.perf_counter()
    for index in range(count):
        hydra.compose(CONFIG_NAME, overrides=["stage=lock", f"train.micro_batch_size={{index + 1}}"])
    print(time.perf_counter() - started)
""".replace("{{", "{").replace("}}", "}")


def main() -> None:
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
        print(f"{'points':>6}  {'pilotkit returns':>16}  {'plain, all queued':>17}  {'composing alone':>15}")
        for count in points:
            sweep = f"train.micro_batch_size=range(1,{count + 1})" if count > 1 else "train.micro_batch_size=1"
            ours = _time_ours(sweep, folder=folder, environment=environment)
            _clear(cluster)
            theirs = _time_plain(plain, sweep, count=count, folder=folder, environment=environment, cluster=cluster)
            _clear(cluster)
            print(f"{count:>6}  {ours:>14.2f} s  {theirs:>15.2f} s  {_time_composing(count, environment):>13.2f} s")
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _time_ours(sweep: str, *, folder: Path, environment: dict[str, str]) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "pilotkit", "-m", "stage=lock", "cluster=slurm", sweep]
    held = "+cluster.additional_parameters.hold=true"
    subprocess.run([*command, held], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _time_plain(
    script: Path, sweep: str, *, count: int, folder: Path, environment: dict[str, str], cluster: Cluster
) -> float:
    command = [sys.executable, str(script), "-m", "hydra/launcher=submitit_slurm", "stage=lock", sweep]
    held = "+hydra.launcher.additional_parameters.hold=true"
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, held], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while len(cluster.run("squeue", "-h", "-r", "-o", "%i").stdout.split()) < count:
            if process.poll() is not None:
                raise RuntimeError(f"the plain launcher ended with {process.returncode}")
            time.sleep(0.05)
        return time.perf_counter() - started
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _time_composing(count: int, environment: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", COMPOSE, str(count)], env=environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def _clear(cluster: Cluster) -> None:
    jobs = set(cluster.run("squeue", "-h", "-o", "%A").stdout.split())
    if jobs:
        cluster.run("scancel", *jobs)


if __name__ == "__main__":
    main()
