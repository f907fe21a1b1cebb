"""How many devices a process sees under the masks of both vendors, alone and together."""

from __future__ import annotations

import pytest

from pilotkit.launch.visible import VisibleDevices, count_visible


def eight() -> int:
    return 8


def never() -> int:
    raise AssertionError("the driver was asked though the mask leaves nothing")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        pytest.param("0,1", 2, id="two numbers"),
        pytest.param(" 0 , 1 ", 2, id="spaces"),
        pytest.param("GPU-8932f937", 1, id="UUID"),
        pytest.param("GPU-8932f937,GPU-aa", 2, id="two UUIDs"),
        pytest.param("GPU-8932f937,GPU-8932f937", 0, id="repeated UUID"),
        pytest.param("GPU-8932f937,1", 1, id="UUID then a number"),
        pytest.param("MIG-a", 1, id="one MIG slice"),
        pytest.param("MIG-a,MIG-b", 1, id="two MIG slices"),
        pytest.param("MIG-a,MIG-a", 0, id="repeated MIG slice"),
        pytest.param("", 0, id="empty"),
        pytest.param("0,-1,1", 1, id="-1 ends the list"),
        pytest.param("-1", 0, id="-1 alone"),
        pytest.param("0,0", 0, id="repeated number"),
        pytest.param("NoDevFiles", 0, id="Slurm without devices"),
        pytest.param("abc", 0, id="text"),
        pytest.param("0,abc,1", 1, id="text ends the list"),
        pytest.param("0,,1", 1, id="gap ends the list"),
        pytest.param("1gpu2,2", 2, id="number with a tail"),
        pytest.param("0,8,1", 1, id="index at the driver's count ends the list"),
        pytest.param("9", 0, id="index past the driver's count"),
        pytest.param("7,6", 2, id="order is free"),
    ],
)
def test_nvidia_mask(mask: str, expected: int) -> None:
    assert count_visible({"CUDA_VISIBLE_DEVICES": mask}, vendor="nvidia", ask_driver=eight).count == expected


def test_unset_asks_the_driver() -> None:
    assert count_visible({}, vendor="nvidia", ask_driver=eight) == VisibleDevices(
        8, "CUDA_VISIBLE_DEVICES is not set; the driver has 8", None
    )


@pytest.mark.parametrize("answer", [0, -1])
@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "MIG-a"}], ids=str)
def test_no_driver_no_devices(environ: dict[str, str], answer: int) -> None:
    assert count_visible(environ, vendor="nvidia", ask_driver=lambda: answer).count == 0


@pytest.mark.parametrize("mask", ["", "NoDevFiles", "abc", "0,0", "-1", "GPU-a,GPU-a"])
def test_driver_is_not_asked_for_nothing(mask: str) -> None:
    assert count_visible({"CUDA_VISIBLE_DEVICES": mask}, vendor="nvidia", ask_driver=never).count == 0


@pytest.mark.parametrize(
    ("mask", "note"),
    [
        pytest.param("0,1", "CUDA_VISIBLE_DEVICES=0,1", id="all used"),
        pytest.param("0,9", "CUDA_VISIBLE_DEVICES=0,9: only 1 usable", id="some not used"),
        pytest.param("", "CUDA_VISIBLE_DEVICES=", id="empty"),
        pytest.param(
            "NoDevFiles", "CUDA_VISIBLE_DEVICES=NoDevFiles: Slurm gave this job no device", id="Slurm without devices"
        ),
    ],
)
def test_note_says_what_the_count_rests_on(mask: str, note: str) -> None:
    found = count_visible({"CUDA_VISIBLE_DEVICES": mask}, vendor="nvidia", ask_driver=eight)
    assert (found.note, found.problem) == (note, None)


def test_several_mig_slices_are_refused_with_the_reason() -> None:
    assert count_visible({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, vendor="nvidia", ask_driver=eight) == VisibleDevices(
        1,
        "CUDA_VISIBLE_DEVICES=MIG-a,MIG-b: a process sees the first MIG slice only",
        "CUDA_VISIBLE_DEVICES=MIG-a,MIG-b names 2 MIG slices, but a process can use one, and ranks cannot train "
        "together over slices; name one slice, or use whole devices",
    )


def test_nvidia_ignores_the_variables_of_amd() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert count_visible(environ, vendor="nvidia", ask_driver=eight) == VisibleDevices(2, "CUDA_VISIBLE_DEVICES=0,1")


@pytest.mark.parametrize(
    ("rocr", "hip", "cuda", "expected"),
    [
        pytest.param(None, None, None, 8, id="no mask"),
        pytest.param(None, "0,1", None, 2, id="HIP alone"),
        pytest.param(None, None, "0,1,2", 3, id="CUDA alone"),
        pytest.param(None, "0,1", "0, 1", 2, id="HIP and CUDA agree"),
        pytest.param("0,1", None, None, 2, id="ROCR alone"),
        pytest.param("1", "1", None, 0, id="HIP indexes the list that ROCR left"),
        pytest.param("1", "0", None, 1, id="HIP inside the list that ROCR left"),
        pytest.param("4,5,6", "2,0", None, 2, id="HIP chooses from ROCR's"),
        pytest.param("4,5", None, "0", 1, id="CUDA indexes ROCR's list too"),
        pytest.param("", "0", None, 0, id="ROCR empty"),
        pytest.param("0,0,1", None, None, 1, id="ROCR ends at a repeated entry"),
        pytest.param("0,9,1", None, None, 1, id="ROCR ends at a missing device"),
        pytest.param("0,GPU-abc", None, None, 2, id="ROCR mixes numbers and UUIDs"),
        pytest.param("0,1gpu", None, None, 1, id="ROCR wants whole numbers"),
    ],
)
def test_amd_masks(rocr: str | None, hip: str | None, cuda: str | None, expected: int) -> None:
    named = {"ROCR_VISIBLE_DEVICES": rocr, "HIP_VISIBLE_DEVICES": hip, "CUDA_VISIBLE_DEVICES": cuda}
    environ = {name: value for name, value in named.items() if value is not None}
    assert count_visible(environ, vendor="amd", ask_driver=eight).count == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param(
            {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "2"},
            VisibleDevices(
                2,
                "HIP_VISIBLE_DEVICES=0,1",
                "HIP_VISIBLE_DEVICES=0,1 and CUDA_VISIBLE_DEVICES=2 disagree; unset one of them",
            ),
            id="HIP against CUDA",
        ),
        pytest.param(
            {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "GPU-abc"},
            VisibleDevices(
                0,
                "ROCR_VISIBLE_DEVICES=0,1 leaves 2",
                "HIP_VISIBLE_DEVICES=GPU-abc names devices by UUID while ROCR_VISIBLE_DEVICES=0,1 is set; "
                "use one of the two",
            ),
            id="UUID on top of ROCR",
        ),
        pytest.param(
            {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"},
            VisibleDevices(
                0,
                "ROCR_VISIBLE_DEVICES=1 leaves 1; then HIP_VISIBLE_DEVICES=1: only 0 usable",
                "HIP_VISIBLE_DEVICES=1 indexes the list that ROCR_VISIBLE_DEVICES=1 leaves (1), and 1 of its entries "
                "cannot be used; unset HIP_VISIBLE_DEVICES, or number its devices from 0",
            ),
            id="masked away",
        ),
        pytest.param(
            {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"},
            VisibleDevices(1, "ROCR_VISIBLE_DEVICES=4,5 leaves 2; then HIP_VISIBLE_DEVICES=1", None),
            id="no problem",
        ),
    ],
)
def test_amd_problems_name_both_values(environ: dict[str, str], expected: VisibleDevices) -> None:
    before = dict(environ)
    assert count_visible(environ, vendor="amd", ask_driver=eight) == expected
    assert environ == before
