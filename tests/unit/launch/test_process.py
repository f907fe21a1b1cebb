"""Every end of a process tree: by itself, by the clock, by an exception, and with members that hide."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pilotkit.errors import Interrupted
from pilotkit.launch import process
from pilotkit.launch.process import run_to_end

# The shell is enough for most; a Python process costs more than the rest of a test.
STUBBORN = 'trap "" TERM; echo up > up; while true; do sleep 0.02; done'


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(process, "POLL_SECONDS", 0.01)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., int | None]]:
    def run(
        script: str, *, timeout_seconds: float | None = 120, while_running: Callable[[], None] = lambda: None
    ) -> int | None:
        return run_to_end(
            ["sh", "-c", script],
            environment={"PATH": os.environ["PATH"], "PILOTKIT_RUN_DIR": str(tmp_path)},
            folder=tmp_path,
            log=tmp_path / "log.txt",
            timeout_seconds=timeout_seconds,
            while_running=while_running,
        )[0]

    yield run
    wait_until_nobody_is_left(tmp_path)


def members(folder: Path) -> list[int]:
    """Everything that works in the folder, in whatever session."""
    found = []
    for entry in psutil.process_iter(["cwd", "status"]):
        if entry.info["cwd"] == str(folder) and entry.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(entry.pid)
    return found


def wait_until_nobody_is_left(folder: Path) -> None:
    """They were killed when the call returned; a busy machine takes its time to carry that out."""
    deadline = time.monotonic() + 60
    while members(folder):
        assert time.monotonic() < deadline, members(folder)
        time.sleep(0.01)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.01)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9)])
def test_the_exit_code(run: Callable[..., int | None], script: str, code: int) -> None:
    assert run(script) == code


def test_output_is_added_to_the_log(run: Callable[..., int | None], tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("before\n", encoding="utf-8")
    run("echo out; echo err >&2; pwd; cat")
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == f"before\nout\nerr\n{tmp_path}\n"


def test_progress_is_asked_for_meanwhile_and_once_after_the_end(run: Callable[..., int | None], tmp_path: Path) -> None:
    seen: list[bool] = []
    run("sleep 0.1; echo done > done", while_running=lambda: seen.append((tmp_path / "done").exists()))
    assert seen[-1]
    assert len(seen) > 1


def test_the_clock_ends_those_that_ignore_a_polite_signal(run: Callable[..., int | None], tmp_path: Path) -> None:
    # Its child ignores the signal, too, and has lost the run's mark: nothing but SIGKILL to the group reaches it.
    script = f"env -u PILOTKIT_RUN_DIR sh -c '{STUBBORN}' & {STUBBORN}"
    assert run(script, timeout_seconds=0.2, while_running=lambda: wait_for(tmp_path / "up")) is None


def test_a_polite_process_may_say_goodbye(
    run: Callable[..., int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 60)
    script = "trap 'echo bye > bye; exit 0' TERM; echo up > up; while true; do sleep 0.02; done"
    assert run(script, timeout_seconds=0.2, while_running=lambda: wait_for(tmp_path / "up")) is None
    assert (tmp_path / "bye").exists()


def test_ctrl_c_ends_the_processes_and_goes_on(run: Callable[..., int | None], tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_for(tmp_path / "up")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(STUBBORN, while_running=interrupt)
    wait_until_nobody_is_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_another_signal_does_not_cut_the_ending_short(
    run: Callable[..., int | None], tmp_path: Path, number: signal.Signals
) -> None:
    """The group asks its own driver to end while it is ended: the polite signal is answered with one of its own."""
    before = signal.getsignal(number)
    received: list[int] = []
    signal.signal(number, lambda got, _: received.append(got))

    def interrupt() -> None:
        wait_for(tmp_path / "up")
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            run(
                f"trap 'kill -{int(number)} {os.getpid()}' TERM; echo up > up; while true; do sleep 0.02; done",
                while_running=interrupt,
            )
        assert signal.getsignal(number) not in (signal.SIG_IGN, before), "our handler is back"
    finally:
        signal.signal(number, before)
    assert received == []


def test_a_grandchild_in_a_session_of_its_own_is_found_by_its_mark(
    run: Callable[..., int | None], tmp_path: Path
) -> None:
    code = "import os, time; os.setsid(); open('up', 'w').close(); time.sleep(60)"
    (tmp_path / "hide.py").write_text(code, encoding="utf-8")
    assert run(f"'{sys.executable}' -S hide.py & while ! test -e up; do sleep 0.02; done") == 0
    wait_until_nobody_is_left(tmp_path)


def test_processes_of_another_run_are_left_alone(tmp_path: Path, run: Callable[..., int | None]) -> None:
    other = psutil.Popen(["sleep", "60"], env={**os.environ, "PILOTKIT_RUN_DIR": f"{tmp_path}-other"})
    try:
        run("exit 0")
        assert other.is_running()
        assert other.status() != psutil.STATUS_ZOMBIE
    finally:
        other.kill()
        other.wait()


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_to_end(
            [str(tmp_path / "absent")],
            environment={},
            folder=tmp_path,
            log=tmp_path / "log.txt",
            timeout_seconds=None,
            while_running=lambda: None,
        )


@pytest.mark.parametrize(
    ("patience_seconds", "can_stop", "code"),
    [(20.0, True, 5), (0.2, True, None), (0.0, True, "raised"), (20.0, False, "raised")],
    ids=["it saves and ends", "it takes too long", "no time for it", "it cannot save"],
)
def test_an_interruption_with_patience_lets_a_process_save(
    tmp_path: Path, patience_seconds: float, can_stop: bool, code: int | str | None
) -> None:
    """The process ends by itself once it was asked to; it never would otherwise, nor at a polite signal."""
    stop, sent = tmp_path / "stop", Interrupted("preempted", "told", patience_seconds=patience_seconds)
    # It gets the signal itself, too, as every process of a job may: nothing happens then.
    obedient = "os.kill(os.getpid(), signal.SIGUSR2); os.path.exists('stop') and os._exit(5)"
    script = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('up', 'w').close()\n"
        f"while True: {obedient if code == 5 else 'pass'}; time.sleep(0.02)"
    )

    def interrupt() -> None:
        if not stop.exists():
            wait_for(tmp_path / "up")
            raise sent

    def start() -> tuple[int | None, Interrupted | None]:
        return run_to_end(
            [sys.executable, "-S", "-c", script],
            environment={"PATH": os.environ["PATH"]},
            folder=tmp_path,
            log=tmp_path / "log.txt",
            timeout_seconds=None,
            while_running=interrupt,
            ask_to_stop=stop.touch if can_stop else None,
        )

    if code == "raised":
        with pytest.raises(Interrupted):
            start()
    else:
        assert start() == (code, sent)
    assert members(tmp_path) == []
