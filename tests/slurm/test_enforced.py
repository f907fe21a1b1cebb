"""A cluster that enforces what a job asked for: its cores, its memory, and how many tasks an array may have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from conftest import running_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(nodes=("cpu-1",), is_strict=True, cores=2, max_array_size=3) as found:
        yield found


def test_cores_and_memory(lab, told) -> None:
    """R08, R09: a job works on the cores it asked for, whatever the terminal's own job was bound to. And a host
    memory limit that Slurm enforces is told as such."""
    foreign = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_CPUS_PER_TASK": "7",
        "SLURM_NTASKS": "9",
        "SLURM_MEM_PER_CPU": "1",
    }
    sweep = lab.submit("cluster.cpus_per_task=1,2", "cluster.mem_gb=2", env=foreign)
    assert lab.until_final(sweep) == [("ok", "")] * 2
    for index, cores in enumerate((1, 2)):
        record = record_of(sweep, index)
        assert record["details"]["threads"]["usable_cpus"] == cores
        assert record["details"]["threads"]["num_threads"] == max(cores // 2, 1), "shared by two devices"
        assert record["provenance"]["slurm"]["removed_variables"] == sorted(foreign)
    killed = lab.submit("+model.kwargs.how=grow", "cluster.mem_gb=0.6")
    truths = lab.until_final(killed)
    told("more host memory than asked for, enforced by Slurm", truths, None)
    assert truths == [("failed", "killed for more host memory than it asked for; raise cluster.mem_gb")]


def test_more_points_than_an_array_may_have(lab) -> None:
    """R13: MaxArraySize bounds the index, so three points are an array here, and five are two."""
    for num_points, sizes in ((3, [3]), (5, [3, 2])):
        sweep = lab.submit(
            *("stage=lock", f"name=of-{num_points}", f"train.seq_len=range(1,{num_points + 1})", "cluster.mem_gb=1")
        )
        manifest = lab.manifest(sweep)
        per_array = [sum(point["array"] == at for point in manifest["points"]) for at in range(len(manifest["arrays"]))]
        assert per_array == sizes
        assert len({array["job_id"] for array in manifest["arrays"]}) == len(sizes)
        assert lab.until_final(sweep) == [("ok", "")] * num_points


def record_of(sweep: Path, index: int) -> dict[str, Any]:
    point = json.loads((sweep / str(index) / "point.json").read_text())
    found: dict[str, Any] = json.loads((Path(point["run_dir"]) / "record.json").read_text())
    return found
