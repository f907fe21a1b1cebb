"""Slurm's own view of jobs: `scontrol` for what it still remembers, `sacct` for the rest where there is accounting.

Called by the submission (limits) and by whoever follows a sweep. Asks and never changes anything but `cancel`, which
says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pilotkit.launch.environment import FOREIGN
from pilotkit.records.truths import LEFT_ARRAY, JobView

TIMEOUT_SECONDS = 20.0
NOT_INSTALLED = 127
# Slurm's NO_VAL: the tasks of an array that was cancelled before any of them had a record of its own.
NO_TASK = "4294967294"
KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")
# Variables that change what Slurm's commands print or which jobs they show.
_COMMAND_SETTINGS = re.compile(r"(SQUEUE|SACCT|SCONTROL|SINFO|SCANCEL)_.*")
_TASKS = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")
_MINUTES = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


@dataclass(frozen=True)
class Views:
    """The jobs that Slurm knows by `123_4` or `123`; `complaint` is what it said when it did not answer at all."""

    jobs: dict[str, JobView] = field(default_factory=dict)
    complaint: str = ""

    def of(self, job_id: str | None) -> JobView | None:
        """One job; a task that has no entry of its own has its array's, which ended before the task began."""
        if job_id is None:
            return None
        base, _, task = job_id.partition("_")
        found = self.jobs.get(job_id) or self.jobs.get(base)
        if found is None and task and any(other.startswith(f"{base}_") for other in self.jobs):
            return JobView(LEFT_ARRAY)
        return found


@dataclass(frozen=True)
class Partition:
    """A partition's name and its time limit in minutes, None without one."""

    name: str
    is_default: bool
    max_minutes: int | None


def has_slurm() -> bool:
    """Whether this machine has the commands to submit with."""
    return shutil.which("sbatch") is not None and shutil.which("srun") is not None


def is_inherited(name: str) -> bool:
    """A variable of somebody else's job or terminal, which Slurm's commands would take for an option of ours."""
    return name not in KEPT_VARIABLES and bool(FOREIGN.fullmatch(name) or _COMMAND_SETTINGS.fullmatch(name))


def view_jobs(job_ids: Sequence[str], *, tasks: Sequence[str] = ()) -> Views:
    """Ask for these submissions (arrays by their own id). One command each, one more for those that are forgotten.

    `tasks` are those of their tasks that matter: of an array that is still known some may be forgotten.
    """
    jobs: dict[str, JobView] = {}
    forgotten: list[str] = []
    for job_id in job_ids:
        answer = _ask("scontrol", "show", "job", "--oneliner", job_id)
        found = parse_scontrol(answer.stdout) if answer.returncode == 0 else {}
        if found:
            jobs.update(found)
        elif "Invalid job id" in answer.stderr:
            forgotten.append(job_id)
        else:
            return Views(jobs, _complaint(answer))
    forgotten += [task for task in tasks if task.partition("_")[0] not in forgotten and _is_missing(jobs, task)]
    if forgotten:
        answer = _ask(
            "sacct", "-X", "-n", "-P", "-D", "-j", ",".join(forgotten), "-o", "JobID,State,ExitCode,NodeList,End"
        )
        if answer.returncode == 0:
            jobs.update(parse_sacct(answer.stdout))
        elif "accounting storage is disabled" not in answer.stderr and answer.returncode != NOT_INSTALLED:
            return Views(jobs, _complaint(answer))
    return Views(jobs)


def _is_missing(jobs: Mapping[str, JobView], task: str) -> bool:
    return task not in jobs and task.partition("_")[0] not in jobs


def find_by_name(names: Sequence[str]) -> tuple[dict[str, str], str]:
    """The submission ids of jobs by their (unique) names, as far as Slurm still has them; and its complaint."""
    answer = _ask("squeue", "--noheader", "--states=all", "--name", ",".join(names), "--format=%F|%j")
    pairs = (line.strip().split("|", 1) for line in answer.stdout.splitlines() if "|" in line)
    return {name: job_id for job_id, name in pairs}, "" if answer.returncode == 0 else _complaint(answer)


def partitions() -> list[Partition]:
    """All partitions; empty when Slurm does not say."""
    answer = _ask("sinfo", "--noheader", "--format=%P|%l")
    found = {}
    for line in answer.stdout.splitlines():
        name, _, limit = line.strip().partition("|")
        found[name] = Partition(name.removesuffix("*"), name.endswith("*"), parse_minutes(limit))
    return list(found.values())


def max_array_size() -> int | None:
    """How many points one array may have; None when Slurm does not say."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config").stdout, re.MULTILINE)
    return int(match[1]) if match else None


def node_address(name: str) -> str | None:
    """Where a node is reached, which is not always its name; None when Slurm does not say."""
    return _field(_ask("scontrol", "show", "node", "--oneliner", name).stdout, "NodeAddr") or None


def cancel(job_ids: Sequence[str]) -> None:
    """End these submissions, running points too."""
    _ask("scancel", *job_ids)


def requeue(job_id: str) -> str:
    """Send a job back to the queue; returns Slurm's complaint, empty when it did."""
    answer = _ask("scontrol", "requeue", job_id)
    return "" if answer.returncode == 0 else _complaint(answer)


@dataclass(frozen=True)
class OwnJob:
    """Our own job as Slurm sees it: `restarts` counts those that are decided, `is_preempted` that it was chosen."""

    state: str
    restarts: int
    is_preempted: bool


def view_own_job(job_id: str) -> OwnJob | None:
    """Asked by a job that was sent a signal, which has seconds left: no answer in two of them is None."""
    answer = _ask("scontrol", "show", "job", "--oneliner", job_id, timeout_seconds=2.0)
    if answer.returncode != 0:
        return None
    is_preempted = _field(answer.stdout, "PreemptTime") not in ("", "None", "Unknown")
    restarts = _field(answer.stdout, "Restarts")
    return OwnJob(_field(answer.stdout, "JobState"), int(restarts) if restarts.isdigit() else 0, is_preempted)


def parse_scontrol(text: str) -> dict[str, JobView]:
    """`scontrol show job --oneliner`: one line a job, waiting tasks of an array together."""
    jobs = {}
    for line in text.splitlines():
        if not line.startswith("JobId="):
            continue
        view = JobView(
            state=_field(line, "JobState"),
            reason=_field(line, "Reason"),
            exit_code=_field(line, "ExitCode") or "0:0",
            nodes=_field(line, "NodeList").replace("(null)", ""),
            restarts=int(_field(line, "Restarts") or 0),
            seconds_since_end=_seconds_since(_field(line, "EndTime")),
        )
        array = _field(line, "ArrayJobId")
        if not array:
            jobs[_field(line, "JobId")] = view
            continue
        tasks = _field(line, "ArrayTaskId")
        if tasks == NO_TASK:
            jobs[array] = view
        for task in () if tasks == NO_TASK else expand_tasks(tasks):
            jobs[f"{array}_{task}"] = view
    return jobs


def parse_sacct(text: str) -> dict[str, JobView]:
    """`sacct -X -n -P -D -o JobID,State,ExitCode,NodeList,End`; of a job that was requeued the last row counts."""
    jobs: dict[str, JobView] = {}
    for line in text.splitlines():
        job_id, state, exit_code, nodes, end = (line.split("|") + [""] * 5)[:5]
        base, _, tasks = job_id.partition("_")
        restarts = 0
        names = [f"{base}_{task}" for task in expand_tasks(tasks.strip("[]"))] if tasks else [base]
        for name in names:
            if name in jobs:
                restarts = jobs[name].restarts + 1
            words = state.split(" ")[0]
            place = "" if nodes == "None assigned" else nodes
            jobs[name] = JobView(words, "", exit_code, place, restarts, _seconds_since(end))
    return jobs


def expand_tasks(text: str) -> Iterator[int]:
    """`0,3-5,6-10:2%2` -> 0, 3, 4, 5, 6, 8, 10: so Slurm writes what is left of an array, a step after a colon."""
    for part in text.partition("%")[0].split(","):
        match = _TASKS.fullmatch(part)
        if match:
            first, last, step = match.groups()
            yield from range(int(first), int(last or first) + 1, int(step or 1))


def parse_minutes(text: str) -> int | None:
    """`7-00:00:00`, `1:00:00` or `30:00` in minutes; None for `infinite` and what is no time."""
    match = _MINUTES.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes


def _ask(*command: str, timeout_seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands; one that is missing or does not answer gives a non-zero exit code."""
    environment = {name: value for name, value in os.environ.items() if not is_inherited(name)}
    # Times are compared with now: seconds since the epoch cannot be misread.
    environment["SLURM_TIME_FORMAT"] = "%s"
    # All waiting tasks of an array, and not the first 64 characters of them.
    environment["SLURM_BITSTR_LEN"] = "0"
    timeout_seconds = timeout_seconds or TIMEOUT_SECONDS
    try:
        return subprocess.run(  # noqa: S603 - Slurm's own commands, found on PATH
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, NOT_INSTALLED, "", f"{command[0]} is not installed here")
    except subprocess.TimeoutExpired:
        words = f"{command[0]} gave no answer in {timeout_seconds:.0f} s"
        return subprocess.CompletedProcess(command, 124, "", words)


def _complaint(answer: subprocess.CompletedProcess[str]) -> str:
    """Never empty: an answer that tells nothing must not be taken for `there is no such job`."""
    words = "no job in its answer" if answer.returncode == 0 else f"exit code {answer.returncode}"
    return _last_line(answer.stderr) or f"{answer.args[0]}: {words}"


def _field(line: str, name: str) -> str:
    match = re.search(rf"(?:^| ){name}=(\S*)", line)
    return match[1] if match else ""


def _seconds_since(text: str) -> float | None:
    if not text.isdigit():
        return None
    return datetime.now().timestamp() - int(text)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
