"""What a rank leaves when it fails, with no torch in sight."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pilotkit.errors import ConfigError, PilotkitError, Problem
from pilotkit.records.run_dir import PhaseDir
from pilotkit.worker import failure


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose torch does not import; the module that knows is given by the tests that need it."""
    monkeypatch.setitem(sys.modules, "pilotkit.meter", None)
    monkeypatch.setitem(sys.modules, "pilotkit.meter.out_of_memory", None)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def written(folder: Path, error: BaseException, *, rank: int = 1) -> dict[str, Any]:
    failure.write(PhaseDir(folder), rank=rank, error=error)
    content: dict[str, Any] = json.loads((folder / f"error-{rank}.json").read_text(encoding="utf-8"))
    return content


def test_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = time.time()
    content = written(tmp_path, raised(ValueError("bad row 17\nand more")))
    assert before <= content.pop("time") <= time.time()
    traceback = content.pop("traceback")
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert traceback.endswith("ValueError: bad row 17\nand more\n")
    assert content == {
        "rank": 1,
        "type": "ValueError",
        "summary": "ValueError: bad row 17",
        "problems": [],
        "where": "building the model",
        "out_of_memory": None,
    }
    assert capsys.readouterr().err == f"{traceback}\n", "the log is where people look next"


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (KeyError(), "KeyError"),
        (PilotkitError("the shared memory is too small\nsecond line"), "the shared memory is too small\nsecond line"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
    ids=["no words", "words for the user", "no exception"],
)
def test_summary(tmp_path: Path, error: BaseException, summary: str) -> None:
    assert written(tmp_path, raised(error))["summary"] == summary


def test_a_mistake_of_the_users_in_parts(tmp_path: Path) -> None:
    error = ConfigError([Problem("data.path", Path("/x"), "a folder", "give one", ("data",))])
    assert written(tmp_path, raised(error))["problems"] == [
        {"key": "data.path", "value": "/x", "allowed": "a folder", "fix": "give one", "factors": ["data"]}
    ]


def call_in(path: str, *names: str) -> BaseException:
    """An error below functions of these names, the outermost first, in a file of this path."""
    body = "raise ValueError('x')"
    for name in reversed(names):
        body = f"def {name}():\n" + "".join(f"    {line}\n" for line in body.splitlines()) + f"{name}()\n"
    try:
        exec(compile(body, path, "exec"), {})  # frames of a file that is not there
    except ValueError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("path", "names", "where"),
    [
        ("/site/pilotkit/train/trainer.py", ["train_step", "helper"], "a step"),
        ("/site/pilotkit/train/trainer.py", ["evaluate"], "evaluation"),
        ("/site/pilotkit/train/checkpoint.py", ["save"], "checkpoint save"),
        ("/site/pilotkit/train/checkpoint.py", ["load"], "checkpoint load"),
        ("/site/pilotkit/train/models/gpt.py", ["load"], "building the model"),
        ("/home/me/train/mine.py", ["load", "evaluate"], "building the model"),
    ],
)
def test_where_it_was(tmp_path: Path, path: str, names: list[str], where: str) -> None:
    assert written(tmp_path, call_in(path, *names))["where"] == where


def test_out_of_memory_is_asked_of_the_one_who_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knows: Any = ModuleType("pilotkit.meter.out_of_memory")
    knows.is_out_of_memory = lambda _: type("Found", (), {"requested_bytes": 64, "text": "no memory"})
    monkeypatch.setitem(sys.modules, "pilotkit.meter", ModuleType("pilotkit.meter"))
    monkeypatch.setitem(sys.modules, "pilotkit.meter.out_of_memory", knows)
    content = written(tmp_path, call_in("/site/pilotkit/train/trainer.py", "train_step"))
    assert content["out_of_memory"] == {"requested_bytes": 64, "text": "no memory", "where": "a step"}


def test_a_torch_whose_libraries_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "pilotkit.meter":
                raise OSError("libcudart.so.12: cannot open shared object file")

    for name in ("pilotkit.meter", "pilotkit.meter.out_of_memory"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    content = written(tmp_path, raised(ValueError("x")))
    assert (content["summary"], content["out_of_memory"]) == ("ValueError: x", None)


class Full:
    """A log on a full disk."""

    def write(self, _: str) -> None:
        raise OSError(28, "No space left on device")

    flush = write


@pytest.mark.parametrize("log_is_full", [True, False])
def test_a_full_disk_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log_is_full: bool
) -> None:
    if log_is_full:
        monkeypatch.setattr(sys, "stderr", Full())
        assert written(tmp_path, raised(ValueError("x")))["summary"] == "ValueError: x"
    else:
        failure.write(PhaseDir(tmp_path / "absent"), rank=0, error=raised(ValueError("x")))
        assert capsys.readouterr().err.endswith("ValueError: x\n\n")
