"""The driver never imports torch: here a `torch` stands first on the path that raises, and notes who asked for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKER_SIDE = ("worker", "train", "meter", "estimate", "device")

FAKE_TORCH = """
import os, traceback
with open(os.environ["TORCH_WAS_ASKED_FOR"], "a", encoding="utf-8") as stream:
    traceback.print_stack(file=stream)
raise ImportError("torch is not for the driver")
"""


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """Environment in which importing torch raises and leaves `asked.txt` in `tmp_path`, however it is caught."""
    package = tmp_path / "fake" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_TORCH, encoding="utf-8")
    path = os.pathsep.join([str(package.parent), str(ROOT)])
    return {"PYTHONPATH": path, "TORCH_WAS_ASKED_FOR": str(tmp_path / "asked.txt")}


def _who_asked(tmp_path: Path) -> str:
    """The stack of each import of torch; empty when nobody asked for it."""
    asked = tmp_path / "asked.txt"
    return asked.read_text(encoding="utf-8") if asked.exists() else ""


def driver_modules() -> list[str]:
    """Every module of the package that is not on the worker side; `__main__` would start the program."""
    modules = []
    for path in sorted((ROOT / "pilotkit").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[1] not in WORKER_SIDE and parts[-1] != "__main__":
            modules.append(".".join(parts).removesuffix(".__init__"))
    return modules


def _python(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_the_fake_torch_bites(tmp_path: Path, without_torch: dict[str, str]) -> None:
    result = _python("try:\n    import torch\nexcept ImportError as error:\n    print(error)", without_torch)
    assert result.stdout == "torch is not for the driver\n"
    assert "in <module>" in _who_asked(tmp_path)


def test_every_driver_module_is_imported_without_torch(tmp_path: Path, without_torch: dict[str, str]) -> None:
    modules = driver_modules()
    assert {"pilotkit", "pilotkit.records.record", "pilotkit.config.schema"} <= set(modules)
    code = f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)\nprint('done')"
    result = _python(code, without_torch)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    assert _who_asked(tmp_path) == ""


@pytest.mark.parametrize(
    ("arguments", "returncode", "text"),
    [
        (["--help"], 0, "stage"),
        (["--version"], 0, "pilotkit"),
        (["--cfg", "job"], 0, "micro_batch_size: 4"),
        (["stage=nonsense"], 2, "stage"),
        (["train.seq_len=0", "measure.max_spread=-1"], 2, "2 problems in the configuration; nothing was started."),
        (["hardware=nonsense"], 2, "nonsense"),
    ],
    ids=["help", "version", "cfg", "unknown stage", "two problems", "unknown option"],
)
def test_the_front_door_opens_without_torch(
    tmp_path: Path,
    without_torch: dict[str, str],
    pilotkit_cli: Callable[..., Any],
    arguments: list[str],
    returncode: int,
    text: str,
) -> None:
    result = pilotkit_cli(*arguments, env=without_torch)
    assert result.returncode == returncode, result.stderr
    assert text in result.stdout + result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    assert _who_asked(tmp_path) == ""


@pytest.mark.parametrize("stage", ["plan", "report"])
def test_a_stage_that_only_reads_records_runs_without_torch(
    tmp_path: Path, without_torch: dict[str, str], pilotkit_cli: Callable[..., Any], stage: str
) -> None:
    result = pilotkit_cli(f"stage={stage}", env=without_torch)
    assert "Traceback" not in result.stderr, result.stderr
    assert result.returncode in (0, 1), result.stdout + result.stderr
    assert list(tmp_path.glob(f"outputs/default/{stage}/*/record.json")), result.stdout + result.stderr
    assert _who_asked(tmp_path) == ""


@pytest.mark.parametrize("mode", ["write", "check"])
def test_a_lock_waits_for_nothing_that_only_a_decision_needs(
    tmp_path: Path, without_torch: dict[str, str], pilotkit_cli: Callable[..., Any], mode: str
) -> None:
    """NumPy is a fifth of the time that a lock takes, and its gate looks before every stage."""
    fake = tmp_path / "fake" / "numpy"
    fake.mkdir()
    (fake / "__init__.py").write_text(FAKE_TORCH.replace("torch", "numpy"), encoding="utf-8")
    lock = ("stage=lock", "lock.path=../lock.pilotkit.yaml")
    (tmp_path / "project").mkdir()
    for words in ((*lock,), (*lock, f"lock.mode={mode}")):
        result = pilotkit_cli(*words, env=without_torch, cwd=tmp_path / "project")
        assert result.returncode == 0, result.stdout + result.stderr
    assert _who_asked(tmp_path) == ""


@pytest.mark.parametrize("stage", ["sweep_status", "sweep_collect"])
def test_a_sweep_is_followed_without_torch_and_without_slurm(
    tmp_path: Path, without_torch: dict[str, str], pilotkit_cli: Callable[..., Any], stage: str
) -> None:
    """A login node where Slurm does not answer: nothing is called an end, and nothing waits."""
    point = {"index": 0, "overrides": ["train.seq_len=8"], "array": 0, "job_id": "7"}
    array = {"words": "", "job_name": "pilotkit-x-0", "count": 1, "job_id": "7"}
    sweep = {"sweep_id": "x", "created_at": "", "state": "submitted", "stage": "measure", "user": "me"}
    more = {"hostname": "here", "launch_dir": str(tmp_path), "schema_version": 1}
    folder = tmp_path / "outputs" / "default" / "sweeps" / "x"
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({**sweep, **more, "arrays": [array], "points": [point]}))
    # A folder is no configuration: Slurm's commands, where there are any, give up at once.
    result = pilotkit_cli(f"stage={stage}", env={**without_torch, "SLURM_CONF": str(tmp_path)})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Slurm does not answer" in result.stdout
    assert "1 points: 1 pending." in result.stdout
    assert _who_asked(tmp_path) == ""
