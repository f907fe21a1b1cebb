"""What was set of TF32 before a run sets it: in a process of its own each, as these are switches of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

OFF = "was set here, and precision=fp32 took it back: TF32 is off; the option to choose is precision=tf32"
ON = "was set here, and precision=tf32 took it back: TF32 is on; the option to choose is precision=fp32"
READ = """
import json, sys, torch
from pilotkit.train.tf32 import settings_against
exec(sys.argv[1])
allow = sys.argv[2] == "tf32"
print(json.dumps(settings_against(sys.argv[2], allow_tf32=allow)))
"""


@pytest.mark.parametrize(
    ("setting", "variables", "precision", "told"),
    [
        ("", {}, "fp32", []),
        ("", {}, "tf32", []),
        ("torch.set_float32_matmul_precision('high')", {}, "tf32", []),
        (
            "torch.set_float32_matmul_precision('high')", {}, "fp32",
            [f"torch.set_float32_matmul_precision('high') {OFF}"],
        ),
        (
            "torch.set_float32_matmul_precision('medium')", {}, "tf32",
            [f"torch.set_float32_matmul_precision('medium') {ON}"],
        ),
        (
            "torch.backends.cuda.matmul.allow_tf32 = True", {}, "fp32",
            [f"torch.set_float32_matmul_precision('high') {OFF}"],
        ),
        ("torch.backends.cudnn.allow_tf32 = False", {}, "tf32", [f"torch.backends.cudnn.allow_tf32=False {ON}"]),
        ("", {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, "fp32", [f"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 {OFF}"]),
        (
            "", {"NVIDIA_TF32_OVERRIDE": "0"}, "tf32",
            [
                "NVIDIA_TF32_OVERRIDE=0 keeps TF32 off in NVIDIA's libraries, whatever precision=tf32 says: unset it, "
                "or take precision=fp32"
            ],
        ),
        ("torch.backends.fp32_precision = 'tf32'", {}, "fp32", [f"torch.backends.fp32_precision='tf32' {OFF}"]),
        (
            "torch.backends.cuda.matmul.fp32_precision = 'tf32'", {}, "fp32",
            [f"torch.backends.cuda.matmul.fp32_precision='tf32' {OFF}"],
        ),
        (
            "torch.backends.cudnn.conv.fp32_precision = 'ieee'", {}, "tf32",
            [f"torch.backends.cudnn.conv.fp32_precision='ieee' {ON}"],
        ),
    ],
)  # fmt: skip
def test_what_is_taken_back_is_told(setting: str, variables: dict[str, str], precision: str, told: list[str]) -> None:
    kept = {name: value for name, value in os.environ.items() if "TF32" not in name}
    done = subprocess.run(
        [sys.executable, "-c", READ, setting, precision], env={**kept, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == told
