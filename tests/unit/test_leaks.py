"""The checks of tests/conftest.py bite: a test that leaks fails, folders give their markers, GPU tests wait."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]

LEAKING = """
import os, subprocess, sys

def test_environment():
    os.environ["LEAKED"] = "1"

def test_folder(tmp_path):
    os.chdir(tmp_path)

def test_child():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

def test_clean(monkeypatch, tmp_path):
    monkeypatch.setenv("BORROWED", "1")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", ""], check=True)
"""

PROCESS_GROUP = """
import sys, types

def test_process_group():
    sys.modules["torch.distributed"] = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        destroy_process_group=lambda: sys.modules.pop("torch.distributed"),
    )
"""

MARKERS = """
def test_markers(request):
    names = {mark.name for mark in request.node.iter_markers()}
    print("markers:", sorted(names))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Runs the tests above below a copy of the conftest; what pytest said of each, by folder and name."""
    folder = tmp_path_factory.mktemp("project")
    for name, code in {
        "unit/test_leaking": LEAKING,
        "unit/test_group": PROCESS_GROUP,
        **{f"{room}/test_markers": MARKERS for room in ("unit", "torch", "runs", "browser", "gpu")},
    }.items():
        path = folder / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    results = folder / "results.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={results}", "-o", "junit_logging=all", "-W", "default"]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=folder, capture_output=True, check=False)
    said: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('classname', '').split('.')[1]}/{case.get('name')}"
        said[name] = said.get(name, "") + "".join((child.get("message") or "") + (child.text or "") for child in case)
    return said


@pytest.mark.parametrize(
    ("name", "leak"),
    [
        ("test_environment", "the test left behind: environment variable LEAKED"),
        ("test_folder", "the test left behind: working directory "),
        ("test_child", "import time; time.sleep(60)"),
        ("test_process_group", "the test left behind: a torch.distributed process group"),
    ],
)
def test_a_leak_fails_the_test(report: dict[str, str], name: str, leak: str) -> None:
    assert leak in report[f"unit/{name}"]


def test_a_clean_test_passes(report: dict[str, str]) -> None:
    assert "left behind" not in report["unit/test_clean"]


@pytest.mark.parametrize(
    ("room", "markers"), [("unit", []), ("torch", ["torch"]), ("runs", ["slow"]), ("browser", ["slow"])]
)
def test_a_folder_gives_its_markers(report: dict[str, str], room: str, markers: list[str]) -> None:
    assert f"markers: {markers}" in report[f"{room}/test_markers"]


def test_a_gpu_test_waits_for_its_variable(report: dict[str, str]) -> None:
    assert "needs an accelerator: set PILOTKIT_GPU=1" in report["gpu/test_markers"]
