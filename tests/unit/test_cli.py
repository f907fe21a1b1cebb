"""Every end of the program is an exit code and, at most, some words."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotkit
from pilotkit import cli, front
from pilotkit.errors import ConfigError, OutputError, Problem, StageFailed, StageRefused

ROOT = Path(__file__).resolve().parents[2]
WRONG = ConfigError([Problem("train.seq_len", "x", "a whole number", "write one")])


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ended(monkeypatch: pytest.MonkeyPatch, error: BaseException | int) -> int:
    def run(_: list[str]) -> int:
        if isinstance(error, BaseException):
            raise error
        return error

    monkeypatch.setattr(front, "run", run)
    return cli.main(["stage=measure"])


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (StageFailed("measure failed: rank 0"), 1, "measure failed: rank 0\n"),
        (StageRefused("asked 4, visible 1"), 1, "asked 4, visible 1\n"),
        (OutputError("output_dir=/o cannot be written"), 1, "output_dir=/o cannot be written\n"),
        (WRONG, 2, f"{WRONG}\n"),
        (KeyboardInterrupt(), 130, "pilotkit was ended by Ctrl-C; what was recorded before is kept.\n"),
        (cli.Ended(15), 143, "pilotkit was ended by signal 15 (SIGTERM); what was recorded before is kept.\n"),
        (cli.Ended(1), 129, "pilotkit was ended by signal 1 (SIGHUP); what was recorded before is kept.\n"),
    ],
    ids=["done", "sweep failed", "failed", "refused", "output", "configuration", "ctrl-c", "terminated", "hung up"],
)
def test_ends(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException | int,
    code: int,
    words: str,
) -> None:
    assert ended(monkeypatch, error) == code
    assert capsys.readouterr() == ("", words)


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        ended(monkeypatch, ZeroDivisionError())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_a_run_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    def run(_: list[str]) -> int:
        signal.raise_signal(number)
        return 0

    monkeypatch.setattr(front, "run", run)
    assert cli.main([]) == 128 + number


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert cli.main([flag]) == 0
    assert capsys.readouterr().out == f"pilotkit {pilotkit.__version__}\n"


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_ours_whatever_else_is_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    monkeypatch.setattr(front, "run", lambda _: pytest.fail("Hydra was asked"))
    assert cli.main(["stage=nonsense", flag]) == 0
    assert capsys.readouterr().out.startswith("pilotkit: evidence before you reserve GPUs\n")


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pilotkit", "--help"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() in (0, 1)
