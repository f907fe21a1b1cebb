"""One verdict for the set: builds and devices that do not go together, slow cards, and what never reads qualified."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pilotkit
from pilotkit.decide.qualify import (
    MENDS,
    is_qualified,
    judge_cards,
    judge_package,
    judge_speed,
    judge_stack,
    reasons,
    row,
    with_mends,
)

# As torch reports them: get_arch_list() and the properties of 2.9 with CUDA 12.8, and of 2.9 with ROCm 6.4 (recorded).
CUDA: dict[str, Any] = {
    "torch": "2.9.1+cu128", "cuda": "12.8", "hip": None, "arch": "sm_90",
    "built_for": ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
}  # fmt: skip
ROCM: dict[str, Any] = {
    "torch": "2.9.1+rocm6.4", "cuda": None, "hip": "6.4.4", "arch": "gfx942",
    "built_for": ["gfx90a", "gfx942", "gfx1100"],
}  # fmt: skip
CPU: dict[str, Any] = {"torch": "2.9.1+cpu", "cuda": None, "hip": None, "arch": None, "built_for": []}


@pytest.mark.parametrize(
    ("stack", "device_type", "archs", "verdicts", "note"),
    [
        (CUDA, "cuda", [], ["PASS"], "has kernels for sm_90"),
        (ROCM, "rocm", ["gfx942"], ["PASS"], "has kernels for gfx942"),
        (CPU, "cpu", [], ["PASS"], "runs on the CPU"),
        (CUDA, "rocm", [], ["FAIL"], "is built for CUDA, and the device needs rocm"),
        (ROCM, "cuda", [], ["FAIL"], "is built for ROCm, and the device needs cuda"),
        (CPU, "cuda", [], ["FAIL"], "is built for the CPU only, and the device needs cuda"),
        ({**CUDA, "arch": "sm_89"}, "cuda", [], ["PASS"], "has kernels for sm_89"),
        (
            {**ROCM, "arch": "gfx950"}, "rocm", [], ["FAIL"],
            "has no kernels for gfx950 (built for gfx90a, gfx942, gfx1100)",
        ),
        (
            {**CUDA, "arch": "sm_61"}, "cuda", [], ["FAIL"],
            "has no kernels for sm_61 (built for sm_70, sm_75, sm_80, sm_86, sm_90, sm_100, sm_120)",
        ),
        (
            {**CUDA, "arch": "sm_110", "built_for": ["sm_80", "compute_90"]}, "cuda", [], ["PASS"],
            "has kernels for sm_110",
        ),
        (CUDA, "cuda", ["sm_100"], ["PASS", "FAIL"], "the application needs sm_100"),
        (CUDA, "cuda", ["sm_80+"], ["PASS"], "has kernels for sm_90"),
        (CUDA, "cuda", ["sm_100+", "gfx942"], ["PASS", "FAIL"], "the application needs sm_100+ or gfx942"),
        (ROCM, "rocm", ["sm_80+"], ["PASS", "FAIL"], "the application needs sm_80+"),
        ({**CUDA, "built_for": ["sm_80", "sm_90a"]}, "cuda", [], ["PASS"], "has kernels for sm_90"),
        (CPU, "cpu", ["sm_80+"], ["PASS", "NOT RUN"], "the CPU has no architecture to compare with sm_80+"),
    ],
    ids=[
        "cuda", "rocm", "cpu", "cuda build, amd node", "rocm build, nvidia node", "cpu build", "same major version",
        "gfx arch that is not built for", "too old", "by ptx", "not the one the application needs",
        "a newer one will do", "older than the least", "another vendor's", "for this one architecture alone",
        "no architecture",
    ],
)  # fmt: skip
def test_build_and_device(
    stack: dict[str, Any], device_type: str, archs: list[str], verdicts: list[str], note: str
) -> None:
    rows = judge_stack(stack, device_type=device_type, archs=archs)
    assert [r["verdict"] for r in rows] == verdicts
    assert rows[-1]["note"] == note


def test_a_slow_card_is_named_with_both_figures() -> None:
    slow = judge_speed("matrix product in bf16", found=200e12, promised=989e12, min_ratio=0.4, unit="FLOP")
    assert (slow["verdict"], slow["note"]) == (
        "FAIL",
        "200 TFLOP/s, 20.2% of the 989 TFLOP/s that the hardware option promises; at least 40% is expected: "
        "a slow card, or another one",
    )
    assert judge_speed("copy", found=2.9e12, promised=3.35e12, min_ratio=0.6, unit="bytes")["verdict"] == "PASS"
    assert judge_speed("copy", found=1.0, promised=None, min_ratio=0.6, unit="bytes")["verdict"] == "NOT RUN"


def test_one_slow_card_among_its_neighbours_is_named() -> None:
    found = judge_cards([700e12, 705e12, 480e12], ["A", "B", "C"], min_share=0.85, shared=False)
    assert (found["verdict"], found["note"]) == ("FAIL", "slow: rank 2 (C) at 480 TFLOP/s, 68% of the fastest")
    assert judge_cards([700e12, 690e12], ["A", "B"], min_share=0.85, shared=False)["verdict"] == "PASS"
    assert judge_cards([700e12, 100e12], ["A", "A"], min_share=0.85, shared=True)["verdict"] == "NOT RUN"


def test_a_package_that_is_missing_or_too_old() -> None:
    assert judge_package("a>=2", installed=None, fits=False)["note"] == "is not installed"
    assert judge_package("a>=2", installed="1.0", fits=False)["verdict"] == "FAIL"
    assert judge_package("a>=2", installed="2.1", fits=True)["verdict"] == "PASS"


def test_framework_alone_never_reads_qualified() -> None:
    framework = [row("build", "torch", "PASS"), row("extension", "x", "PASS")]
    assert not is_qualified(framework)
    assert reasons(framework) == ["no operator was exercised"]
    exercised = [*framework, row("operator", "aten::mm", "PASS"), row("operator", "aten::empty", "NOT RUN")]
    assert is_qualified(exercised)
    broken = [*exercised, row("kernel", "a::b", "FAIL", "is gone")]
    assert not is_qualified(broken)
    assert reasons(broken) == ["kernel a::b: is gone"]


def test_what_failed_says_how_to_mend_it() -> None:
    rows = [row("kernel", "a::b", "FAIL", "is gone"), row("kernel", "a::c", "PASS", "dispatched in the step")]
    assert with_mends(rows) == [
        {**rows[0], "note": f"is gone; {MENDS['kernel']}"},
        rows[1],
    ]


def test_every_kind_of_check_has_its_mend() -> None:
    """The kinds are those that the files of the worker and of the judge write down."""
    root = Path(pilotkit.__file__).parent
    files = [*(root / "worker/qualify").glob("*.py"), root / "worker/phases/qualify.py", root / "decide/qualify.py"]
    words = {word for file in files for word in re.findall(r'\b(?:Row|row)\("([a-z ]+)"', file.read_text("utf-8"))}
    words |= {
        word for file in files for word in re.findall(r'check(?:, title)? = "([a-z ]+)"', file.read_text("utf-8"))
    }
    assert {"build", "extension", "operator", "cards"} <= words
    assert words == set(MENDS)
