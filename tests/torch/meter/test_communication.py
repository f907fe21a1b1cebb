"""Total, exposed and hidden communication: from traces written by hand, and from two gloo ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pilotkit
from pilotkit.meter import read_trace
from pilotkit.meter.communication import STEP

SCRIPT = """
import json, sys, time
import torch, torch.distributed as dist
from pilotkit.meter import profile_step

rank, out = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
store = dist.FileStore(out + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
tensor = torch.ones(1000)

def step():
    # Starting the profiler takes either rank as long as it likes: they are together only from here on.
    store.set(f"in the step {rank}", "")
    store.wait([f"in the step {1 - rank}"])
    if rank == 1:
        time.sleep(1)
    dist.all_reduce(tensor)
    torch.ones(64, 64) @ torch.ones(64, 64)

found = profile_step(step, synchronize=lambda: None)
kind = found.by_kind["all_reduce"]
values = [found.step_seconds, found.exposed_seconds, found.total_seconds, kind.count, kind.num_bytes]
open(out + f"/{rank}.json", "w").write(json.dumps(values))
dist.destroy_process_group()
"""


def _event(name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": start, "dur": end - start, **more}


def _gloo(start: float, end: float, numel: int = 10) -> dict[str, Any]:
    args = {"Input Dims": [[numel]], "Input type": ["float"]}
    return _event("gloo:all_reduce", start, end, args=args)


def test_hidden_and_exposed_on_gloo() -> None:
    found = read_trace(
        [
            _event(STEP, 0, 1000),
            _event("aten::mm", 0, 400),
            _event("aten::add", 100, 200),  # inside mm: counted once
            _gloo(300, 600),
            _gloo(500, 700),  # overlaps the other one
            _event("c10d::allreduce_", 290, 300),
            {"ph": "M", "name": "process_name"},
        ]
    )
    assert found.step_seconds == pytest.approx(1000e-6)
    assert found.total_seconds == pytest.approx(400e-6)
    assert found.exposed_seconds == pytest.approx(300e-6)
    reduced = found.by_kind["all_reduce"]
    assert (reduced.count, reduced.num_bytes) == (2, 80)
    assert reduced.bytes_per_second == pytest.approx(80 / 500e-6)


def test_kernels_of_an_accelerator() -> None:
    kernel = {"cat": "kernel"}
    gather = {"In msg nelems": 100, "dtype": "BFloat16"}
    found = read_trace(
        [
            _event("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)", 0, 100, args=gather, **kernel),
            _event("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 200, 300, **kernel),
            _event("ampere_bf16_gemm", 50, 250, **kernel),
            _event("aten::mm", 0, 300, cat="cpu_op"),  # launched early: hides nothing
        ]
    )
    assert found.exposed_seconds == pytest.approx(100e-6)
    assert found.by_kind["all_gather"].num_bytes == 200
    assert found.by_kind["reduce_scatter"].num_bytes is None  # the trace does not say, so nobody guesses


@pytest.mark.parametrize(
    ("kernel", "collective", "kind"),
    [
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "allreduce", "all_reduce"),
        ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", "_allgather_base", "all_gather"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "_reduce_scatter_base", "reduce_scatter"),
        ("ncclDevKernel_Generic_1", "reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("ncclDevKernel_Generic_1", "allgather_into_tensor_coalesced", "all_gather"),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", None, "collective"),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", None, "all_gather"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", None, "all_reduce"),
    ],
)
def test_kernels_that_do_not_name_their_collective(kernel: str, collective: str | None, kind: str) -> None:
    """RCCL runs every collective in a kernel of one name: it is no computation, and torch tells which one it was."""
    args = {"Collective name": collective, "In msg nelems": 10, "dtype": "Float"} if collective else {}
    found = read_trace([_event(kernel, 0, 100, args=args, cat="kernel"), _event("gemm", 50, 200, cat="kernel")])
    assert list(found.by_kind) == [kind]
    assert (found.total_seconds, found.exposed_seconds) == (pytest.approx(100e-6), pytest.approx(50e-6))
    assert found.by_kind[kind].num_bytes == (40 if collective else None)


def test_nothing_was_communicated() -> None:
    found = read_trace([_event("aten::mm", 0, 10)])
    assert (found.total_seconds, found.exposed_seconds, found.by_kind) == (0.0, 0.0, {})


def test_two_ranks_and_one_that_is_late(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(pilotkit.__file__).parents[1])}
    command = [sys.executable, str(script)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=60)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors
    step, exposed, total, count, num_bytes = json.loads((tmp_path / "0.json").read_text())
    assert (count, num_bytes) == (1, 4000)
    # Rank 0 waits for the other one in the collective, and nothing of its own hides that.
    assert 0.5 < exposed <= total <= step
    assert json.loads((tmp_path / "1.json").read_text())[2] < total
