"""`make slurm-demo`: a private cluster below outputs/, a small sweep on it, its page, and the cluster down again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cluster import Cluster, missing_programs

ROOT = Path(__file__).resolve().parents[2]
SWEEP = ("name=slurm-demo", "output_dir=outputs")


def main() -> int:
    missing = missing_programs()
    if missing:
        print(f"{', '.join(missing)} missing. Install Slurm with:")
        print("  apt-get install --no-install-recommends slurmctld slurmd slurm-client munge")
        return 1
    if os.geteuid() != 0:
        print("the demo's cluster runs its daemons as root: start it with sudo make slurm-demo")
        return 1
    outputs = ROOT / "outputs"
    outputs.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=outputs))
    cluster = Cluster(folder, nodes=("cpu-1", "cpu-2"))
    try:
        cluster.start()
        print(f"a cluster of two nodes is up below {folder}")
        code = _pilotkit(
            cluster,
            *("-m", "stage=measure", "cluster=slurm", "cluster.wait=true", "cluster.time_minutes=10"),
            *("cluster.array_parallelism=2", "train.micro_batch_size=1,2", "train.seq_len=64,128"),
        )
        return max(code, _pilotkit(cluster, "stage=sweep_collect"))
    finally:
        cluster.stop()
        time.sleep(0.2)
        shutil.rmtree(folder, ignore_errors=True)
        print("the cluster is down")


def _pilotkit(cluster: Cluster, *arguments: str) -> int:
    environment = {**os.environ, **cluster.env, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pilotkit", *arguments, *SWEEP]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
