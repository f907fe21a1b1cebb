"""The wheel: built offline from this checkout, carries all it needs, and runs where the checkout is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import pilotkit

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "pilotkit", "hydra_plugins", "conf")


def _run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing left over in the checkout can slip in."""
    copy = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy, cwd=copy)
    (built,) = out.glob("pilotkit-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment's `bin` that holds the wheel, and borrows its dependencies from this Python."""
    venv = tmp_path_factory.mktemp("venv with spaces") / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    (site,) = venv.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", venv / "bin" / "python"]
    _run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=venv.parent)
    # After the wheel's own folder on the path, so that the wheel wins over an editable install.
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return venv / "bin"


def test_wheel_carries_options_and_templates(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    options = {f"pilotkit/conf/{path.relative_to(ROOT / 'conf')}" for path in (ROOT / "conf").rglob("*.yaml")}
    packages = (path for name in ("pilotkit", "hydra_plugins") for path in (ROOT / name).rglob("*") if path.is_file())
    code = {str(path.relative_to(ROOT)) for path in packages}
    code = {path for path in code if "__pycache__" not in path}
    assert "pilotkit/conf/config.yaml" in options
    assert any(path.startswith("pilotkit/report/templates/") for path in code)
    assert (options | code) - held == set()
    strangers = {path for path in held - options - code if not path.startswith("pilotkit-")}
    assert strangers == set()


def test_installed_command_knows_its_version(installed: Path, tmp_path: Path) -> None:
    result = _run(installed / "pilotkit", "--version", cwd=tmp_path)
    assert result.stdout == f"pilotkit {pilotkit.__version__}\n"


def test_installed_package_is_the_wheel(installed: Path, tmp_path: Path) -> None:
    result = _run(installed / "python", "-c", "import pilotkit; print(pilotkit.__file__)", cwd=tmp_path)
    assert Path(result.stdout.strip()).is_relative_to(installed.parent)


def test_installed_command_composes_its_own_options(installed: Path, tmp_path: Path) -> None:
    result = _run(installed / "pilotkit", "hardware=h100", "--cfg", "job", cwd=tmp_path)
    assert "name: h100" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_installed_command_pins_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    _run(installed / "pilotkit", "stage=lock", cwd=tmp_path)
    assert len(list(tmp_path.glob("outputs/default/lock/*/record.json"))) == 1


def test_installed_command_sweeps_with_its_own_launcher(installed: Path, tmp_path: Path) -> None:
    overrides = ("stage=lock", "train.seed=1,2", "hydra/launcher=submitit_local")
    result = _run(installed / "pilotkit", "-m", *overrides, cwd=tmp_path)
    assert "2 points: 2 ok" in result.stdout
