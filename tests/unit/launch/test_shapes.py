"""What a point asks of Slurm, from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.config.schema import PilotConfig
from pilotkit.launch.shapes import check_shape, shape_of
from pilotkit.launch.slurm_plan import check_partition, result_digest
from pilotkit.launch.slurm_submit import sbatch_sentence, split
from pilotkit.launch.slurm_view import Partition

Configure = Callable[..., PilotConfig]
H100 = ("hardware=h100", "precision=bf16_mixed")


def parameters(config: PilotConfig, **launcher: Any) -> dict[str, Any]:
    return dict(shape_of(config, launcher=launcher).parameters)


@pytest.mark.parametrize(
    ("overrides", "gres", "cpus"),
    [
        (("stage=measure", *H100), "gpu:h100:1", 1),
        (("stage=pilot", *H100), "gpu:h100:8", 8),
        (("stage=pilot", *H100, "parallelism.nproc_per_node=4", "data.num_workers=2"), "gpu:h100:4", 12),
        (("stage=restore", *H100, "cluster.gpu_type=any"), "gpu:8", 8),
        (("stage=restore", *H100, "cluster.gpu_type=hopper"), "gpu:hopper:8", 8),
        (("stage=plan", *H100), None, 1),
        (("stage=pilot",), None, 2),
    ],
    ids=["one device", "a node", "half a node", "untyped", "another name", "reads records", "cpu"],
)
def test_devices_and_cores(configure: Configure, overrides: tuple[str, ...], gres: str | None, cpus: int) -> None:
    found = parameters(configure("cluster=slurm", *overrides))
    assert (found.get("gres"), found["cpus_per_task"]) == (gres, cpus)


@pytest.mark.parametrize(("stage", "nodes"), [("pilot", 2), ("all", 2), ("measure", 1), ("restore", 1)])
def test_who_runs_on_several_nodes(configure: Configure, stage: str, nodes: int) -> None:
    found = parameters(configure("cluster=slurm", f"stage={stage}", "parallelism=ddp", "parallelism.num_nodes=2"))
    assert found["nodes"] == nodes


def test_the_time_limit_is_the_reservation_unless_it_is_given(configure: Configure) -> None:
    assert parameters(configure("cluster=slurm", "reservation=30d"))["time"] == 30 * 24 * 60
    assert parameters(configure("cluster=slurm", "cluster.time_minutes=20"))["time"] == 20


def test_what_is_set_at_the_launcher_wins(configure: Configure) -> None:
    config = configure("cluster=slurm", "cluster.partition=a", "cluster.mem_gb=1.5", "stage=measure", *H100)
    found = parameters(config, partition="b", timeout_min=3, nodelist="n1", mail_type="FAIL", gres=None, entry="x:y")
    assert (found["partition"], found["time"], found["nodelist"], found["mem"]) == ("b", 3, "n1", "1536M")
    assert found["additional_parameters"] == {"mail-type": "FAIL"}
    assert "entry" not in found


def test_equal_resources_are_one_shape(configure: Configure) -> None:
    one, other = (
        shape_of(configure("cluster=slurm", f"train.seq_len={length}"), launcher={}).key for length in (32, 64)
    )
    assert one == other
    assert shape_of(configure("cluster=slurm", "reservation=30d"), launcher={}).key != one


def test_several_tasks_a_node_are_refused(configure: Configure) -> None:
    config = configure("cluster=slurm")
    problems = check_shape(config, shape_of(config, launcher={"tasks_per_node": 4}))
    assert [problem.key for problem in problems] == ["hydra.launcher.tasks_per_node"]


LIMITS = [Partition("short", True, 60), Partition("long", False, None)]


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (("cluster.time_minutes=60",), []),
        (("cluster.time_minutes=61",), ["cluster.time_minutes"]),
        (("cluster.partition=long",), []),
        (("cluster.partition='short,long'",), []),
        (("cluster.partition=nope",), ["cluster.partition"]),
    ],
    ids=["within", "default is too short", "without a limit", "one of two would", "unknown"],
)
def test_partition_limits(configure: Configure, overrides: tuple[str, ...], keys: list[str]) -> None:
    config = configure("cluster=slurm", *overrides)
    found = check_partition(config, shape_of(config, launcher={}), limits=LIMITS)
    assert [problem.key for problem in found] == keys
    assert check_partition(config, shape_of(config, launcher={}), limits=[]) == []


def test_where_a_point_runs_is_not_part_of_its_result() -> None:
    plain = {"stage": "measure", "train": {"seq_len": 8}, "cluster": {"partition": "a"}, "output_dir": "x"}
    assert result_digest(plain) == result_digest({**plain, "cluster": {}, "output_dir": "y"})
    assert result_digest(plain) != result_digest({**plain, "train": {"seq_len": 9}})


def test_arrays_are_split_at_the_largest_size() -> None:
    assert split(6, largest=4) == [range(4), range(4, 6)]
    assert split(6, largest=None) == [range(6)]


def test_sbatchs_own_sentence() -> None:
    error = RuntimeError("x\nsbatch: error: Invalid qos specification\nsbatch: error: Invalid qos specification\ny")
    assert sbatch_sentence(error) == "sbatch: error: Invalid qos specification"
