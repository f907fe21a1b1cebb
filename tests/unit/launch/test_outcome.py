"""Why a worker ended as it did, from what it left: error files, torchrun's summary, the kernel's counter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pilotkit.launch import outcome
from pilotkit.launch.outcome import Outcome, judge, last_lines, read_tail, signal_name
from pilotkit.records.record import Failure
from pilotkit.records.run_dir import PhaseDir

NOISE = "W1201 22:03:14.954000 20423 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 20433 ...\n"
# What torch 2.13 prints last when rank 1 of two is killed, word for word; `{root}` and `{other}` are exit codes.
SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
pilotkit.worker FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-01_22:03:14
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : {other} (pid: 20433)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 20433
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_22:03:14
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {root} (pid: 20434)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 20434
=======================================================
"""
NO_OTHERS = SUMMARY[: SUMMARY.index("[1]:")] + "  <NO_OTHER_FAILURES>\n" + SUMMARY[SUMMARY.index("-------\nRoot") :]


@pytest.fixture
def phase(tmp_path: Path) -> PhaseDir:
    return PhaseDir(tmp_path)


def ended(phase: PhaseDir, returncode: int | None, *, log: str = "", torchrun: bool = True, kills: int = 0) -> Outcome:
    phase.log.write_text(log, encoding="utf-8")
    return judge(phase, returncode=returncode, wall_seconds=2.5, oom_kills=kills, torchrun=torchrun)


def write_error(phase: PhaseDir, rank: int, time: float, **more: Any) -> None:
    content = {"rank": rank, "time": time, "summary": f"ValueError: of rank {rank}", "traceback": f"tb {rank}", **more}
    phase.error(rank).write_text(json.dumps(content), encoding="utf-8")


def test_done(phase: PhaseDir) -> None:
    phase.result.write_text('{"metrics": {"a": 1}}', encoding="utf-8")
    assert ended(phase, 0) == Outcome("ok", 2.5, result={"metrics": {"a": 1}})


def test_a_result_of_a_process_that_failed_does_not_count(phase: PhaseDir) -> None:
    phase.result.write_text("{}", encoding="utf-8")
    found = ended(phase, 1, log="one\ntwo\n")
    assert found == Outcome(
        "failed", 2.5, failure=Failure("the worker ended with exit code 1 and left no result", log="one\ntwo")
    )


@pytest.mark.parametrize("text", [None, '{"cut": '], ids=["none", "cut short"])
def test_no_result(phase: PhaseDir, text: str | None) -> None:
    if text:
        phase.result.write_text(text, encoding="utf-8")
    found = ended(phase, 0)
    assert (found.status, found.failure) == (
        "failed",
        Failure("the worker ended with exit code 0 and left no result"),
    )


def test_time_is_up(phase: PhaseDir) -> None:
    write_error(phase, 0, 1.0)
    found = ended(phase, None, log="step 3\n")
    assert found == Outcome("timed_out", 2.5, failure=Failure("the time limit was reached", log="step 3"))


def test_the_earliest_error_is_the_cause(phase: PhaseDir) -> None:
    write_error(phase, 0, 20.0, summary="RuntimeError: connection closed by peer")
    write_error(phase, 1, 10.0, summary="ValueError: bad row 17", traceback="Traceback ...")
    phase.error(2).write_text('{"rank": 2, "ti', encoding="utf-8")
    found = ended(phase, 1, log=NOISE + SUMMARY.format(root=1, other=-15))
    assert found.status == "failed"
    assert found.failure is not None
    assert (found.failure.summary, found.failure.rank) == ("rank 1: ValueError: bad row 17", 1)
    assert found.failure.traceback == "Traceback ..."


def test_a_kernel_without_a_fixed_order_is_told_in_our_options(phase: PhaseDir) -> None:
    """The text of torch 2.13, which advises calls that nobody here makes."""
    words = "put_ does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'."
    write_error(phase, 0, 1.0, summary=f"RuntimeError: {words} You can turn off determinism just for this operation")
    found = ended(phase, 1)
    assert found.failure is not None
    assert found.failure.summary == (
        "rank 0: put_ has no deterministic kernel here; do without it, or set train.deterministic=false, and two runs "
        "of one lock need not be equal"
    )


def test_a_nan_leads_to_the_stage_that_names_its_module(phase: PhaseDir) -> None:
    words = "step 3: the loss is nan (first on rank 0); every rank stops here"
    write_error(phase, 0, 1.0, summary=words)
    found = ended(phase, 1)
    assert found.failure is not None
    assert found.failure.summary == (
        f"rank 0: {words}; stage=numerics with the same options names the module in which it began"
    )


class Killed(NamedTuple):
    log: str
    returncode: int
    torchrun: bool
    summary: str
    cause: str
    rank: int | None


KILLED = {
    "one of two ranks": Killed(
        NOISE + SUMMARY.format(root=-9, other=-15),
        *(1, True, "rank 1 was killed by signal 9 (SIGKILL)"),
        *("often the machine's out-of-memory killer, or somebody's kill -9", 1),
    ),
    "by SIGTERM from outside": Killed(
        SUMMARY.format(root=-15, other=-15), 1, True, "rank 1 was killed by signal 15 (SIGTERM)", "", 1
    ),
    "the root before another one": Killed(
        SUMMARY.format(root=-6, other=-9),
        *(1, True, "rank 1 was killed by signal 6 (SIGABRT)", "native code gave up; its last words are in the log", 1),
    ),
    "beside a rank that failed of it": Killed(
        SUMMARY.format(root=1, other=-11),
        *(1, True, "rank 0 was killed by signal 11 (SIGSEGV)"),
        *("a fault in native code: an extension, a driver, or memory refused where nobody checks", 0),
    ),
    "alone": Killed(
        NO_OTHERS.format(root=-7),
        *(1, True, "rank 1 was killed by signal 7 (SIGBUS)"),
        *("often shared memory (/dev/shm) that is full: fewer loader processes need less", 1),
    ),
    "one process": Killed(
        "",
        *(-9, False, "rank 0 was killed by signal 9 (SIGKILL)"),
        *("often the machine's out-of-memory killer, or somebody's kill -9", 0),
    ),
    "torchrun itself": Killed(
        "",
        *(-9, True, "torchrun was killed by signal 9 (SIGKILL)"),
        *("often the machine's out-of-memory killer, or somebody's kill -9", None),
    ),
    "by a signal without a name": Killed("", -63, False, "rank 0 was killed by signal 63", "", 0),
}


@pytest.mark.parametrize("case", KILLED.values(), ids=KILLED.keys())
def test_killed(phase: PhaseDir, case: Killed) -> None:
    # The neighbour's error came later, and earlier than the summary.
    write_error(phase, 0, 1.0, summary="RuntimeError: connection closed by peer")
    found = ended(phase, case.returncode, log=case.log, torchrun=case.torchrun)
    assert found.status == "failed"
    assert found.failure is not None
    assert (found.failure.summary, found.failure.cause, found.failure.rank) == (case.summary, case.cause, case.rank)


def test_a_rank_that_ended_without_a_word_is_the_cause(phase: PhaseDir) -> None:
    """Case R31: os._exit(3) on rank 1."""
    write_error(phase, 0, 1.0, summary="RuntimeError: connection reset by peer")
    found = ended(phase, 1, log=NOISE + SUMMARY.format(root=3, other=1))
    assert found.failure is not None
    assert (found.failure.summary, found.failure.rank) == ("rank 1 ended with exit code 3 and no error", 1)
    assert found.failure.cause == (
        "by os._exit, or by native code; what another rank then met: rank 0: RuntimeError: connection reset by peer"
    )


def test_torchruns_own_signal_to_the_others_is_no_cause(phase: PhaseDir) -> None:
    write_error(phase, 1, 1.0, summary="ValueError: bad row 17")
    found = ended(phase, 1, log=SUMMARY.format(root=1, other=-15))
    assert found.failure is not None
    assert found.failure.summary == "rank 1: ValueError: bad row 17"


def test_the_stack_of_native_code_is_kept(phase: PhaseDir) -> None:
    log = 'step 1\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n  File "mine.py", line 3 in forward\n'
    found = ended(phase, -11, log=log, torchrun=False)
    assert found.failure is not None
    assert found.failure.traceback == log[7:].rstrip("\n")


def test_an_allocation_that_was_refused(phase: PhaseDir) -> None:
    where = {"requested_bytes": 1024, "text": "...", "where": "a step"}
    write_error(phase, 0, 30.0, summary="RuntimeError: connection closed by peer")
    write_error(phase, 2, 20.0, out_of_memory={**where, "where": "evaluation"})
    write_error(phase, 3, 10.0, out_of_memory=where, summary="RuntimeError: can't allocate memory")
    assert ended(phase, 1, log=SUMMARY.format(root=1, other=-15)) == Outcome(
        "does_not_fit",
        2.5,
        failure=Failure(
            "out of memory in a step", cause="RuntimeError: can't allocate memory", rank=3, traceback="tb 3"
        ),
        out_of_memory=where,
    )


@pytest.mark.parametrize(
    ("returncode", "log", "kills", "status", "cause"),
    [
        (-9, "", 1, "does_not_fit", "says the kernel's out-of-memory killer"),
        (
            -6,
            "terminate called after throwing an instance of 'std::bad_alloc'\n",
            0,
            "does_not_fit",
            "say the allocator's last words in the log",
        ),
        (
            -9,
            "DefaultCPUAllocator: can't allocate memory: you tried ...\n",
            0,
            "does_not_fit",
            "say the allocator's last words in the log",
        ),
        (-11, "", 1, "failed", "a fault in native code: an extension, a driver, or memory refused where nobody checks"),
        (-9, "", 0, "failed", "often the machine's out-of-memory killer, or somebody's kill -9"),
        (1, "MemoryError\n", 1, "failed", ""),
    ],
    ids=["kernel", "bad_alloc", "allocator", "kernel killed another one", "nobody says so", "not killed"],
)
def test_a_death_counts_as_too_little_memory_only_with_evidence(
    phase: PhaseDir, returncode: int, log: str, kills: int, status: str, cause: str
) -> None:
    found = ended(phase, returncode, log=log, torchrun=False, kills=kills)
    assert found.failure is not None
    assert (found.status, found.failure.cause) == (status, cause)
    if status == "does_not_fit":
        assert found.failure.summary == "rank 0 was killed for want of memory"
        assert found.out_of_memory == {"where": cause}


def test_a_full_disk_is_said(phase: PhaseDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 4096})())
    found = ended(phase, 1)
    assert found.failure is not None
    assert found.failure.summary == (
        "the worker ended with exit code 1 and left no result: the disk of the output folder is full "
        "(4.00 KiB free); give another output_dir"
    )


def test_the_end_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "LOG_TAIL_BYTES", 8)
    path = tmp_path / "log.txt"
    path.write_bytes(b"0123456789\xff")
    assert read_tail(path) == "3456789\ufffd"
    assert read_tail(tmp_path / "absent") == ""
    assert last_lines("a\nb\nc\n", count=2) == "b\nc"


def test_names_of_signals() -> None:
    assert (signal_name(9), signal_name(100)) == ("signal 9 (SIGKILL)", "signal 100")
