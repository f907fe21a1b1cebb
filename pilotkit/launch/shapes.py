"""What a point asks of Slurm, read from its configuration. Points that ask for the same share one array.

Called by `pilotkit.launch.slurm_sweep`. Pure: asks nothing of Slurm and starts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotkit.config.schema import PilotConfig
from pilotkit.errors import Problem

# Stages that only read records need no accelerator; these start one process; every other starts a rank a device.
READERS = ("budget", "plan", "report")
ONE_DEVICE = ("lock", "prove", "measure")
# Every other stage runs on one node, whatever the intended run has; `all` has a pilot in it.
SEVERAL_NODES = ("pilot", "all")

MINUTES_PER_DAY = 24 * 60
# submitit's name of a parameter, by the name that Hydra's launcher gives it.
RENAMED = {
    "timeout_min": "time",
    "mem_gb": "mem",
    "tasks_per_node": "ntasks_per_node",
    "name": "job_name",
}


@dataclass(frozen=True)
class Shape:
    """The resources of a job, as parameters of submitit's Slurm executor. Equal shapes go into one array."""

    parameters: Mapping[str, Any]
    python: str | None = None

    @property
    def key(self) -> str:
        """The same text for the same resources."""
        return json.dumps([dict(self.parameters), self.python], sort_keys=True, default=str)

    def words(self) -> str:
        """`partition=7d gres=gpu:h100:1 time=60`: what tells this shape from another."""
        shown = ("partition", "nodes", "gres", "cpus_per_task", "mem", "time")
        return " ".join(f"{name}={self.parameters[name]}" for name in shown if self.parameters.get(name) is not None)


def shape_of(config: PilotConfig, *, launcher: Mapping[str, Any]) -> Shape:
    """The shape of one point. What the user set at `hydra.launcher.*` wins over what follows from the configuration."""
    cluster = config.cluster
    parameters: dict[str, Any] = {
        "time": time_minutes(config),
        "nodes": config.parallelism.num_nodes if config.stage in SEVERAL_NODES else 1,
        "ntasks_per_node": 1,
        "cpus_per_task": cluster.cpus_per_task or processes_per_node(config) * (1 + config.data.num_workers),
        "gres": gres_of(config),
        "mem": f"{int(cluster.mem_gb * 1024)}M" if cluster.mem_gb else None,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "exclude": cluster.exclude,
        "array_parallelism": cluster.array_parallelism,
        "signal_delay_s": cluster.signal_delay_seconds,
        "setup": list(cluster.setup),
        # The batch script itself becomes pilotkit's driver: it owns all cores of the allocation, gets signals first,
        # and may start srun where a run spans nodes.
        "use_srun": False,
        "additional_parameters": dict(cluster.additional_parameters),
    }
    given = from_launcher(launcher)
    parameters["additional_parameters"] |= given.pop("additional_parameters", {})
    parameters["setup"] += given.pop("setup", None) or []
    if given.get("gpus_per_node") is not None and given.get("gres") is None:
        parameters["gres"] = None
    python = given.pop("python", None) or cluster.python
    parameters.update(given)
    return Shape({name: value for name, value in parameters.items() if value is not None}, python)


def from_launcher(launcher: Mapping[str, Any]) -> dict[str, Any]:
    """What was set at `hydra.launcher.*`, under submitit's names; nulls and our own fields are left out."""
    own = ("submitit_folder", "entry", "max_num_timeout")
    given = {RENAMED.get(key, key): value for key, value in launcher.items() if key not in own and value is not None}
    extra = {name.replace("_", "-"): given.pop(name) for name in ("mail_user", "mail_type") if name in given}
    given["additional_parameters"] = {**extra, **given.get("additional_parameters", {})}
    if "mem" in given:
        given["mem"] = f"{int(float(given['mem']) * 1024)}M"
    return given


def check_shape(config: PilotConfig, shape: Shape) -> list[Problem]:
    """What is wrong with the resources whatever the cluster is."""
    problems = []
    tasks = shape.parameters.get("ntasks_per_node", 1)
    if tasks != 1:
        problems.append(
            Problem(
                "hydra.launcher.tasks_per_node",
                tasks,
                "1: torchrun starts the ranks, so each node needs one task",
                "leave it out, and set parallelism.nproc_per_node for the number of ranks",
            )
        )
    nodes = shape.parameters.get("nodes", 1)
    if nodes > 1 and shape.parameters.get("use_srun"):
        problems.append(
            Problem(
                "hydra.launcher.use_srun",
                True,
                f"false with {nodes} nodes: pilotkit would be started on each of them, and starts srun itself",
                "leave it out",
                ("parallelism.num_nodes", "hydra.launcher.nodes"),
            )
        )
    reserved = int(config.reservation.days * MINUTES_PER_DAY)
    asked = int(shape.parameters["time"])
    if asked > reserved:
        problems.append(
            Problem(
                "cluster.time_minutes",
                asked,
                f"at most {reserved}: reservation={config.reservation.name} is {config.reservation.days:g} days",
                "shorten cluster.time_minutes, or choose a longer reservation",
                ("reservation", "reservation.days"),
            )
        )
    return problems


def time_minutes(config: PilotConfig) -> int:
    """The time limit: what was given, else the whole reservation."""
    return config.cluster.time_minutes or int(config.reservation.days * MINUTES_PER_DAY)


def processes_per_node(config: PilotConfig) -> int:
    """Ranks that the stage starts on each node; a stage that reads records starts none and counts as one."""
    if config.stage in (*READERS, *ONE_DEVICE):
        return 1
    return config.parallelism.nproc_per_node or config.hardware.device_count


def gres_of(config: PilotConfig) -> str | None:
    """`gpu:h100:8`, None where no accelerator is needed."""
    if config.cluster.gres is not None:
        return config.cluster.gres
    if config.hardware.device_type == "cpu" or config.stage in READERS:
        return None
    kind = config.cluster.gpu_type or config.hardware.name
    count = processes_per_node(config)
    return f"gpu:{count}" if kind == "any" else f"gpu:{kind}:{count}"
