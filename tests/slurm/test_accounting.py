"""With real accounting (slurmdbd and MariaDB): what the controller has forgotten is still known."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cluster import Cluster
from conftest import running_cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    # Two seconds after its end a job is forgotten by the controller: only accounting can tell then.
    with running_cluster(nodes=("cpu-1",), min_job_age=2, has_accounting=True) as found:
        yield found


def test_truths_from_accounting(lab, cluster: Cluster) -> None:
    done = lab.pilotkit(
        *("-m", "cluster=slurm", "stage=lock", "train.seq_len=32", "cluster.account=nobody"),
    )
    assert done.returncode == 1
    assert "sbatch: error: Batch job submission failed: Invalid account" in done.stderr
    assert "submitted" not in done.stdout
    sweep = lab.submit("+model.kwargs.how=sleep,ok", "cluster.array_parallelism=2")
    array = lab.array_id(sweep)
    lab.until(sweep, lambda found: found[0] == "running" and found[1] == "ok")
    cluster.run("scancel", f"{array}_0")
    # The record of a point that was told to end says so at once; without it only Slurm knows.
    lab.until_final(sweep)
    end = time.monotonic() + 120
    while cluster.run("scontrol", "show", "job", array).returncode == 0:
        assert time.monotonic() < end, "the controller does not forget the job"
        time.sleep(1)
    assert [status for status, _ in lab.truths(sweep)] == ["cancelled", "ok"]
    for record in lab.folder.glob("outputs/*/measure/*/record.json"):
        record.unlink()
    assert [status for status, _ in lab.until_final(sweep)] == ["cancelled", "failed"]
