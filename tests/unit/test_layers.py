"""The layers hold, and each contract bites: one wrong import planted in a copy breaks the contract that forbids it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS = "Layers import downward only, siblings never each other"
DRIVER = "The driver never imports the worker side"
WORKER = "The worker's entry point is above its phases"
STAGES = "No stage imports another"
TORCH = "Only the worker side imports torch"
PROCESSES = "Only launch starts processes"

PLANTS = {
    "upward": (LAYERS, "decide/planted.py", "import pilotkit.stages"),
    "siblings launch and report": (LAYERS, "report/planted.py", "import pilotkit.launch"),
    "siblings records and provenance": (LAYERS, "records/planted.py", "import pilotkit.provenance"),
    "lazily upward": (LAYERS, "units.py", "def planted():\n    import pilotkit.config\n"),
    "worker side imports driver": (LAYERS, "train/planted.py", "import pilotkit.decide"),
    "meter imports train": (LAYERS, "meter/planted.py", "import pilotkit.train"),
    "a room that no layer names": (LAYERS, "planted/__init__.py", ""),
    "driver imports worker side": (DRIVER, "stages/planted.py", "import pilotkit.meter"),
    "driver imports device": (DRIVER, "report/planted.py", "import pilotkit.device"),
    "phase imports entry point": (WORKER, "worker/phases/planted.py", "import pilotkit.worker.__main__"),
    "stage imports stage": (STAGES, "stages/planted.py", "import pilotkit.stages.lock"),
    "torch in a stage": (TORCH, "stages/planted.py", "import torch"),
    "torch in records": (TORCH, "records/planted.py", "import torch.distributed as dist"),
    "subprocess in a stage": (PROCESSES, "stages/planted.py", "import subprocess"),
    "subprocess in a phase": (PROCESSES, "worker/phases/planted.py", "from subprocess import run"),
    "subprocess in provenance": (PROCESSES, "provenance/planted.py", "import subprocess"),
    "submitit in the front door": (PROCESSES, "cli.py", "import submitit"),
}


def _copy(folder: Path) -> Path:
    shutil.copytree(ROOT / "pilotkit", folder / "pilotkit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _plant(folder: Path, path: str, code: str) -> Path:
    target = folder / "pilotkit" / path
    target.parent.mkdir(exist_ok=True)
    with open(target, "a", encoding="utf-8") as stream:
        stream.write(f"\n{code}\n")
    return target


def _lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """`lint-imports` as the Makefile runs it, on the package in this folder."""
    code = (
        "import sys; sys.path.insert(0, ''); from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    command = [sys.executable, "-c", code, "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_contract_is_kept(tmp_path: Path) -> None:
    result = _lint_imports(_copy(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    for contract in (LAYERS, DRIVER, WORKER, STAGES, TORCH, PROCESSES):
        assert f"{contract} KEPT" in result.stdout


@pytest.mark.parametrize(("contract", "path", "code"), PLANTS.values(), ids=PLANTS.keys())
def test_a_wrong_import_breaks_its_contract(tmp_path: Path, contract: str, path: str, code: str) -> None:
    _plant(_copy(tmp_path), path, code)
    result = _lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contract} BROKEN" in result.stdout
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert module in result.stdout, "broken by something else"


@pytest.mark.parametrize(
    ("path", "banned"),
    [("stages/planted.py", True), ("cli.py", True), ("config/planted.py", True), ("worker/phases/planted.py", False)],
    ids=["stage", "front door", "config", "worker"],
)
def test_ruff_bans_torch_outside_the_worker_side(tmp_path: Path, path: str, banned: bool) -> None:
    target = tmp_path / "pilotkit" / path
    target.parent.mkdir(parents=True)
    target.write_text("import torch\n\nprint(torch.__version__)\n", encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251", "pilotkit"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == int(banned), result.stdout
    assert ("the driver never imports torch" in result.stdout) == banned
