"""Whether the devices of a node are those that were named; how many processes they can take."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pilotkit.launch import devices
from pilotkit.launch.devices import Devices, find_devices, judge_devices, refuse_process_count

H100 = "NVIDIA H100 80GB HBM3"
ELSEWHERE = "Run the same command on a node that has it, or take hardware=cpu to try everything here"


def judged(seen: dict[str, Any], environ: dict[str, str] | None = None, *, vendor: Any = "nvidia") -> Devices:
    return judge_devices(
        {"torch": "2.13.0", **seen}, environ or {}, hardware="h100", vendor=vendor, name_pattern="H100"
    )


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        pytest.param(
            {"names": [], "driver_count": 0},
            f"hardware=h100 is not on this node (visible: none; torch 2.13.0). {ELSEWHERE}",
            id="absent",
        ),
        pytest.param(
            {"names": ["NVIDIA A100-SXM4-80GB"] * 2, "driver_count": 2},
            f"hardware=h100 is not on this node (visible: NVIDIA A100-SXM4-80GB; torch 2.13.0). {ELSEWHERE}",
            id="another one",
        ),
        pytest.param(
            {"names": [], "driver_count": None, "present": [], "cuda": None, "hip": None},
            f"hardware=h100 is not on this node (visible: none; torch 2.13.0 is built for the CPU only). {ELSEWHERE}",
            id="a build for the CPU where no device is known",
        ),
        pytest.param(
            {"names": [], "driver_count": None, "present": [H100] * 8, "cuda": None, "hip": "6.4"},
            f"torch 2.13.0 is built for ROCm, and this node has 8 x {H100}: install the CUDA build of torch",
            id="a build for ROCm on an NVIDIA node",
        ),
        pytest.param(
            {"names": [H100, "NVIDIA T4"], "driver_count": 2},
            f"the visible devices are mixed: {H100}, NVIDIA T4; hide the others from this run",
            id="mixed",
        ),
        pytest.param(
            {"error": "torch did not answer within 120 s"},
            "this machine's devices could not be asked: torch did not answer within 120 s",
            id="no answer",
        ),
    ],
)
def test_refused(seen: dict[str, Any], problem: str) -> None:
    assert judged(seen) == Devices(0, problem=problem)


def test_a_wheel_for_cuda_on_an_amd_node() -> None:
    seen = {"names": [], "driver_count": None, "present": ["gfx942"] * 8, "cuda": "12.8", "hip": None}
    assert judged(seen, vendor="amd").problem == (
        "torch 2.13.0 is built for CUDA, and this node has 8 x gfx942: install the ROCm build of torch"
    )


@pytest.mark.parametrize("mask", ["", "-1", "0,0", "NoDevFiles", "abc", "8", "GPU-a,GPU-a", "MIG-a,MIG-a"])
def test_a_mask_that_hides_every_device_is_named(mask: str) -> None:
    seen = {"names": [], "driver_count": 8, "present": [H100] * 8, "cuda": "12.8", "hip": None}
    problem = judged(seen, {"CUDA_VISIBLE_DEVICES": mask, "HIP_VISIBLE_DEVICES": "1"}).problem
    assert problem == (
        f"hardware=h100 is not on this node (visible: none, CUDA_VISIBLE_DEVICES={mask} leaves none; torch 2.13.0). "
        "Unset CUDA_VISIBLE_DEVICES, run the same command on a node that has it, or take hardware=cpu to try "
        "everything here"
    )


def test_two_masks_that_hide_every_device_are_named() -> None:
    seen = {"names": [], "driver_count": 8, "cuda": None, "hip": "6.4"}
    problem = judged(seen, {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}, vendor="amd").problem
    assert problem is not None
    assert "ROCR_VISIBLE_DEVICES= leaves none, HIP_VISIBLE_DEVICES= leaves none; torch 2.13.0). Unset ROCR" in problem


def test_a_mask_of_nothing_is_not_blamed() -> None:
    seen = {"names": [], "driver_count": 0, "present": [], "cuda": "12.8", "hip": None}
    problem = judged(seen, {"CUDA_VISIBLE_DEVICES": "0"}).problem
    assert problem == f"hardware=h100 is not on this node (visible: none; torch 2.13.0). {ELSEWHERE}"


def test_all_of_a_node() -> None:
    assert judged({"names": [H100] * 8, "driver_count": 8}) == Devices(
        8, note="CUDA_VISIBLE_DEVICES is not set; the driver has 8"
    )


def test_a_mask_leaves_what_it_names() -> None:
    found = judged({"names": [H100] * 2, "driver_count": 8}, {"CUDA_VISIBLE_DEVICES": "4,5"})
    assert (found.visible, found.problem) == (2, None)


def test_a_driver_that_does_not_tell_its_number() -> None:
    found = judged({"names": [H100], "driver_count": None}, {"CUDA_VISIBLE_DEVICES": "7"})
    assert (found.visible, found.problem) == (1, None)


def test_any_device_will_do_without_a_pattern() -> None:
    found = judge_devices({"names": ["X", "Y"]}, {}, hardware="mine", vendor="nvidia", name_pattern=None)
    assert (found.visible, found.problem) == (2, None)


def test_the_cpu_has_the_shares_that_were_named_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_probe", lambda _: pytest.fail("asked"))
    found = find_devices(hardware="cpu", device_type="cpu", device_count=3, name_pattern=None, launch_dir=tmp_path)
    assert found == Devices(3, note="3 equal shares of the usable cores")


@pytest.mark.parametrize(
    ("stdout", "stderr", "seen"),
    [
        ('torch says hello\n{"names": ["NVIDIA H100"], "torch": "2"}\n', "", None),
        ("", "Traceback\nOSError: libcudart.so.12: cannot open\n", "OSError: libcudart.so.12: cannot open"),
        ("not json\n", "", "the probe printed nothing"),
    ],
    ids=["an answer after noise", "a torch that does not import", "noise alone"],
)
def test_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str, seen: str | None) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout, stderr))
    found = find_devices(hardware="h100", device_type="cuda", device_count=8, name_pattern="H100", launch_dir=tmp_path)
    assert found.problem == (f"this machine's devices could not be asked: {seen}" if seen else None)
    assert found.visible == (0 if seen else 1)


def test_a_probe_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired([], 120)

    monkeypatch.setattr(subprocess, "run", hang)
    found = find_devices(hardware="h100", device_type="cuda", device_count=8, name_pattern=None, launch_dir=tmp_path)
    assert found.problem == "this machine's devices could not be asked: torch did not answer within 120 s"


@pytest.mark.parametrize(
    ("asked", "visible", "idle_is_fine", "refusal"),
    [
        pytest.param(
            *(4, 1, False),
            "asked 4, visible 1: each process needs a device of its own. "
            "Set parallelism.nproc_per_node=1, or make 4 devices visible",
            id="too many processes",
        ),
        pytest.param(
            *(4, 1, True),
            "asked 4, visible 1: each process needs a device of its own. "
            "Set parallelism.nproc_per_node=1, or make 4 devices visible",
            id="too many processes, whatever is allowed",
        ),
        pytest.param(
            *(2, 4, False),
            "asked 2, visible 4: 2 would stand idle and still be paid for. "
            "Set parallelism.nproc_per_node=4, or pilot.allow_idle_devices=true if that is meant",
            id="idle devices",
        ),
        pytest.param(2, 4, True, None, id="idle devices that are meant"),
        pytest.param(4, 4, False, None, id="as many as there are"),
    ],
)
def test_process_count(asked: int, visible: int, idle_is_fine: bool, refusal: str | None) -> None:
    assert refuse_process_count(asked, visible, allow_idle_devices=idle_is_fine) == refusal
