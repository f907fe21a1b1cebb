"""A pilot on two nodes of the cluster: one torchrun on each through srun, which meet on the first."""

from __future__ import annotations

import json
import time
from pathlib import Path


def test_a_pilot_on_two_nodes_that_is_told_to_end(lab, told) -> None:
    """The signal reaches its steps, as there are some here; the ranks of both nodes save, and go on in attempt 2."""
    slow = lab.folder / "slow"
    slow.touch()
    sweep = lab.submit(
        *("stage=pilot", "parallelism.num_nodes=2", "hardware.device_count=1", "pilot.strategies=[ddp]"),
        *("pilot.num_warmup_steps=2", "pilot.max_warmup_steps=2", "pilot.num_measured_steps=40"),
        *(f"+model.kwargs.slow={slow}", "cluster.time_minutes=20"),
    )
    array = lab.manifest(sweep)["arrays"][0]
    assert array["parameters"]["nodes"] == 2
    run_dir = _until(lambda: _run_dir(sweep))
    # Only now: of a job that waits Slurm writes a range, 2-2.
    assert lab.cluster.jobs(array["job_id"])[0]["NumNodes"] == "2"
    phase = run_dir / "phases" / "pilot_ddp"
    _until(lambda: (phase / "progress.jsonl").exists() and len((phase / "progress.jsonl").read_text()) > 200)
    lab.cluster.run("scancel", "--signal=USR2", array["job_id"])
    _until((run_dir / "record-1.json").exists)
    slow.unlink()
    truths = lab.until_final(sweep, seconds=120)
    told("SIGUSR2 to the steps of a pilot on two nodes: saved, requeued, attempt 2", truths, None)
    assert truths == [("ok", "")]
    before, after = (json.loads((run_dir / name).read_text()) for name in ("record-1.json", "record.json"))
    assert before["status"] == "preempted"
    assert "somebody told the worker to save and end; saved after step" in before["problem"]["summary"]
    assert (after["metrics"]["world_size"], after["metrics"]["num_nodes"]) == (2, 2)
    ddp = after["details"]["strategies"]["ddp"]
    assert ddp["mesh"] == {"dp_replicate": 2, "dp_shard": 1}
    assert [attempt["number"] for attempt in ddp["attempts"]] == [1, 2]
    assert ddp["attempts"][1]["first_step"] == ddp["attempts"][0]["last_step"] + 1
    assert not any("network between nodes" in warning for warning in after["details"]["warnings"])
    # Two agents, each with one rank of its own: the second one's environment holds nothing of srun.
    assert "Traceback" not in (phase / "attempt-1" / "log.txt").read_text()


SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from pilotkit.meter import StepMeter

assert sys.argv[1:] == ["--phase", "a b", "--"], sys.argv
foreign = [name for name in os.environ if name.startswith(("SLURM_", "PMI"))]
assert not foreign, foreign
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
meter = StepMeter(tokens_per_step=64, num_warmup_steps=1)
for _ in range(6):
    with meter.step():
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
meter.close()
dist.destroy_process_group()
"""


def test_a_script_on_two_nodes(lab) -> None:
    """One group over both: each rank left its measurement, and the arguments came as they were given."""
    (lab.folder / "train.py").write_text(SCRIPT)
    sweep = lab.submit(
        *("stage=pilot", "parallelism.num_nodes=2", "hardware.device_count=1", "pilot.script=train.py"),
        "pilot.args=[--phase,a b,--]",
    )
    assert lab.until_final(sweep) == [("ok", "")]
    run_dir = _run_dir(sweep)
    assert run_dir is not None
    record = json.loads((run_dir / "record.json").read_text())
    assert (record["metrics"]["world_size"], record["metrics"]["num_nodes"]) == (2, 2)
    assert record["metrics"]["script_world_size"] == 2
    assert len(record["details"]["strategies"]["script"]["devices"]) == 2
    assert not any("of 2" in warning for warning in record["details"]["warnings"])


def _run_dir(sweep: Path) -> Path | None:
    point = json.loads((sweep / "0" / "point.json").read_text())
    return Path(point["run_dir"]) if point["run_dir"] else None


def _until(done):
    end = time.monotonic() + 120
    while not (found := done()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found
