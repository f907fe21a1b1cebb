"""What a phase works with: its configuration, its rank, its device, and a line to the driver.

`open_session` is called once a process, by `pilotkit.worker.phases`. Order matters and is told where it does.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import psutil
import torch
import torch.distributed as dist

from pilotkit.config.batch import BatchArithmetic, batch_arithmetic
from pilotkit.config.load import load_file
from pilotkit.config.schema import PilotConfig
from pilotkit.device import Device, DeviceType, limit_cpu_memory, open_device, start_cpu_threads
from pilotkit.records.run_dir import PhaseDir, RunDir
from pilotkit.train.optimizer import build_optimizer
from pilotkit.variables import NODE_RANK_VARIABLE

# A rank that is gone must end the others soon; a first batch or a compilation may take minutes.
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class Session:
    """One rank of one phase."""

    config: PilotConfig
    arithmetic: BatchArithmetic
    run_dir: RunDir
    phase_dir: PhaseDir
    rank: int
    world_size: int
    device: Device
    local_rank: int = 0
    node_rank: int | None = None
    """Number of this node, of several; None on one node."""

    def progress(self, done: int, total: int, *, label: str, step: int | None = None) -> None:
        """Tell the driver how far the phase is, and which optimizer step that was; only one rank is heard."""
        if self.is_beside_driver:
            line = {"label": label, "done": done, "total": total, **({} if step is None else {"step": step})}
            with open(self.phase_dir.progress, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

    def is_told_to_stop(self) -> bool:
        """Whether the driver wants this phase to save and end; all ranks hear the same."""
        return self.highest(float(self.is_beside_driver and self.phase_dir.stop.exists())) > 0

    @property
    def is_beside_driver(self) -> bool:
        """Rank 0; of several nodes the first rank of the first one, as rank 0 may be on any."""
        if self.node_rank is None:
            return self.rank == 0
        return self.local_rank == 0 and self.node_rank == 0

    def share(self, result: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's result on every rank of a run on several nodes, which need not see each other's files."""
        return result if self.node_rank is None else cast("dict[str, Any]", self.gather(result)[0])

    def highest(self, value: float) -> float:
        """The largest `value` of all ranks."""
        if self.world_size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device.torch_device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    def gather(self, value: object) -> list[object]:
        """The `value` of every rank, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[object] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def seconds_since_start(self) -> float:
        """Since the process that the driver started, torchrun where there is one, began."""
        under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        process = psutil.Process(os.getppid() if under_torchrun else os.getpid())
        return datetime.datetime.now().timestamp() - process.create_time()


@contextmanager
def open_session(run_dir: RunDir, *, phase: str, on_device: bool = True) -> Iterator[Session]:
    """Open the device, join the process group when torchrun started us, and set the CPU's memory limit.

    Without `on_device` the session is one of this processor, unlimited, whatever the hardware option names.
    """
    config = load_file(run_dir.config)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = open_device(cast(DeviceType, config.hardware.device_type if on_device else "cpu"), local_rank=local_rank)
    grouped = "TORCHELASTIC_RUN_ID" in os.environ
    if grouped:
        device_id = None if device.torch_device.type == "cpu" else device.torch_device
        dist.init_process_group(device.backend, timeout=COLLECTIVE_TIMEOUT, device_id=device_id)
    try:
        if device.torch_device.type == "cpu" and on_device:
            _limit_memory(config)
        yield Session(
            config=config,
            arithmetic=batch_arithmetic(config),
            run_dir=run_dir,
            phase_dir=run_dir.phase(phase),
            rank=dist.get_rank() if grouped else 0,
            world_size=dist.get_world_size() if grouped else 1,
            device=device,
            local_rank=local_rank,
            node_rank=int(node) if (node := os.environ.get(NODE_RANK_VARIABLE)) else None,
        )
    finally:
        # After an error the others may be gone: a rank that says goodbye properly would wait for them.
        if grouped and not _failing():
            dist.destroy_process_group()


def _limit_memory(config: PilotConfig) -> None:
    """What every first step brings along (threads, lazily imported parts of torch) is there before the limit counts."""
    start_cpu_threads()
    weight = torch.nn.Parameter(torch.ones(8, 8))
    optimizer = build_optimizer([weight], **dataclasses.asdict(config.optimizer))
    torch.autograd.backward((weight @ weight).sum())
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    optimizer.step()
    limit_cpu_memory(config.hardware.memory_bytes)


def _failing() -> bool:
    import sys

    return sys.exc_info()[0] is not None
