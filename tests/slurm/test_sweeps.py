"""Sweeps on a real cluster: what is submitted, where it lands, what is refused, what is run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LOCK = ("stage=lock", "model=gpt_tiny", "data=stdlib")


def test_four_endings_and_the_code_that_was_submitted(lab, told) -> None:
    """Four endings of one model; the code is changed after submission, and the old code runs."""
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (["init", "-q"], ["add", "endings.py"], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=lab.folder, check=True)
    sweep = lab.submit("+model.kwargs.how=ok,raise,exit,kill", "train.seq_len=32", "cluster.array_parallelism=2")
    (lab.folder / "endings.py").write_text("raise SystemError('this code was not submitted')")
    truths = lab.until_final(sweep, seconds=90)
    events = ("the model raises", "`sys.exit(3)`", "`kill -9` of a rank")
    for event, truth in zip(events, truths[1:], strict=True):
        told(event, [truth], None)
    assert truths == [
        ("ok", ""),
        ("failed", "rank 0: ValueError: bad row 17"),
        ("failed", "rank 0: SystemExit: 3"),
        ("failed", "rank 0 was killed by signal 9 (SIGKILL)"),
    ]
    point = json.loads((sweep / "0" / "point.json").read_text())
    provenance = json.loads((Path(point["run_dir"]) / "record.json").read_text())["provenance"]
    assert provenance["code"]["tree"]["from"] == str(lab.folder)
    assert provenance["code"]["is_enforced"] is (sys.version_info >= (3, 11))
    assert provenance["slurm"]["job_id"] == lab.manifest(sweep)["points"][0]["job_id"]
    shown = lab.pilotkit("stage=sweep_status")
    assert shown.returncode == 1
    assert "4 points: 1 ok, 3 failed." in shown.stdout


def test_a_lock_is_that_of_the_code_that_was_submitted(lab) -> None:
    """The folder changes while the job waits: the lock that it makes is the one that was made before."""
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (["init", "-q"], ["add", "endings.py"], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=lab.folder, check=True)
    mine = ("stage=lock", "model=custom", "model.factory=endings:build", "train.micro_batch_size=1", "train.seq_len=32")
    before = lab.pilotkit(*mine, "name=before")
    assert before.returncode == 0, before.stderr
    held = "+cluster.additional_parameters.hold=true"
    done = lab.pilotkit("-m", "cluster=slurm", *mine, "cluster.time_minutes=10", held)
    assert done.returncode == 0, done.stderr
    (lab.folder / "endings.py").write_text("raise SystemError('this code was not submitted')")
    sweep = lab.newest()
    lab.cluster.run("scontrol", "release", lab.array_id(sweep))
    assert lab.until_final(sweep) == [("ok", "")]
    locks = [
        json.loads(next(lab.folder.glob(f"outputs/{name}/lock/*/record.json")).read_text())["details"]["lock"]
        for name in ("before", "default")
    ]
    assert locks[1]["git"] == locks[0]["git"]
    assert locks[1]["model"]["revision"] == locks[0]["model"]["revision"]
    assert "dirty" not in locks[1]["model"]["note"], "not of the folder as it is by now"


def test_each_hardware_lands_on_its_nodes(lab) -> None:
    """No such device is here: the truth is `refused`, and the nodes are those of the hardware."""
    sweep = lab.submit("hardware=a100,h100", "cluster.partition='${reservation.name}'", "reservation=7d,30d")
    manifest = lab.manifest(sweep)
    assert [array["parameters"]["gres"] for array in manifest["arrays"]] == [
        "gpu:a100:1",
        "gpu:a100:1",
        "gpu:h100:1",
        "gpu:h100:1",
    ]
    assert [array["parameters"]["partition"] for array in manifest["arrays"]] == ["7d", "30d", "7d", "30d"]
    truths = lab.until_final(sweep)
    assert {status for status, _ in truths} == {"refused"}
    nodes = [json.loads((sweep / str(index) / "point.json").read_text())["attempts"][0]["node"] for index in range(4)]
    assert nodes == ["a100-1", "a100-1", "h100-1", "h100-1"]


def test_resources_follow_from_the_point(lab) -> None:
    held = "+cluster.additional_parameters.hold=true"
    done = lab.pilotkit(
        *("-m", "stage=pilot", "cluster=slurm", "hardware=h100", "precision=bf16_mixed", "train.micro_batch_size=1"),
        *("parallelism.nproc_per_node=2,4", "data.num_workers=0", "cluster.time_minutes=30", held),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    manifest = lab.manifest(lab.newest())
    jobs = [lab.cluster.jobs(array["job_id"])[0] for array in manifest["arrays"]]
    assert [job["TresPerNode"] for job in jobs] == ["gres:gpu:h100:2", "gres:gpu:h100:4"]
    assert [job["TimeLimit"] for job in jobs] == ["00:30:00", "00:30:00"]
    assert [job["CPUs/Task"] for job in jobs] == ["2", "4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cluster.partition=nope"], "cluster.partition=nope"),
        (["cluster.partition=debug", "cluster.time_minutes=5"], "at most the partition's limit (debug 1 minutes)"),
        (["cluster.time_minutes=20000"], "at most 10080: reservation=7d is 7 days"),
        (
            ["+cluster.additional_parameters.nodelist=nowhere"],
            "sbatch: error: Batch job submission failed: Invalid node name specified",
        ),
        (["cluster.gpu_type=b200", "hardware=h100"], "Requested node configuration is not available"),
        (["hydra.launcher.tasks_per_node=2"], "torchrun starts the ranks"),
        (
            ["hydra.launcher.use_srun=true", "hydra.launcher.nodes=2"],
            "false with 2 nodes: pilotkit would be",
        ),
        (["+cluster.additional_parameters.container-image=train"], "unrecognized option '--container-image=train'"),
    ],
    ids=["partition", "partition limit", "reservation", "node", "gres", "tasks per node", "srun", "no such option"],
)
def test_refused_in_words_and_nothing_is_queued(lab, arguments: list[str], words: str) -> None:
    done = lab.pilotkit("-m", "cluster=slurm", *LOCK, "train.seq_len=32,64", *arguments)
    assert done.returncode in (1, 2), done.stdout
    assert words.lower() in (done.stdout + done.stderr).lower()
    assert "Traceback" not in done.stderr
    assert "submitted" not in done.stdout
    assert lab.cluster.run("squeue", "-h").stdout == ""


def test_a_disk_that_has_no_room_for_the_code_is_one_line(lab, small_disk: Path) -> None:
    done = lab.pilotkit("-m", "cluster=slurm", *LOCK, "train.seq_len=32,64", f"output_dir={small_disk / 'out'}")
    assert done.returncode == 1
    assert done.stderr.startswith("The code of the sweep cannot be kept: [Errno 28] No space left on device")
    assert done.stderr.count("\n") == 1
    assert lab.cluster.run("squeue", "-h").stdout == ""


def test_what_a_container_needs_reaches_sbatch(lab) -> None:
    """Slurm's own option for a bundle, and a wrapper that starts Python: as the queue holds them."""
    done = lab.pilotkit(
        *("-m", "cluster=slurm", *LOCK, "train.seq_len=32", "cluster.time_minutes=10", "image=train.sif"),
        *("cluster.python='apptainer exec --nv \"my train.sif\" python'", "cluster.setup=[module load apptainer]"),
        *("+cluster.additional_parameters.container=/bundles/train", "+cluster.additional_parameters.hold=true"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    job_id = lab.array_id(lab.newest())
    assert lab.cluster.jobs(job_id)[0]["Container"] == "/bundles/train"
    script = lab.cluster.run("scontrol", "write", "batch_script", job_id, "-").stdout
    assert "\nmodule load apptainer\n" in script
    assert 'exec apptainer exec --nv "my train.sif" python -u -m submitit.core._submit ' in script


def test_one_wrong_point_refuses_the_sweep(lab) -> None:
    sweep = ("-m", "cluster=slurm", *LOCK, "train.seq_len=32,999999", "cluster.time_minutes=10")
    done = lab.pilotkit(*sweep)
    assert done.returncode == 2
    assert "train.seq_len=999999" in done.stderr
    assert "point 1; sweep.skip_invalid=true submits the others" in done.stderr
    assert lab.cluster.run("squeue", "-h").stdout == ""
    done = lab.pilotkit(*sweep, "sweep.skip_invalid=true")
    assert done.returncode == 0, done.stderr
    truths = lab.until_final(lab.newest())
    assert [status for status, _ in truths] == ["ok", "refused"]


def test_what_drifted_from_the_committed_lock_is_not_queued(lab) -> None:
    """At the submission, and again in a job that waited while something else changed."""
    same = ("lock.path=lock.pilotkit.yaml", "train.seq_len=32")
    mine = ("model=custom", "model.factory=endings:build", "train.micro_batch_size=1")
    locked = lab.pilotkit("stage=lock", *mine, *same)
    assert locked.returncode == 0, locked.stderr
    sweep = ("-m", "stage=measure", "cluster=slurm", *mine, *same, "lock.mode=check")
    held = lab.submit(*same, "lock.mode=check", "+cluster.additional_parameters.hold=true")

    with (lab.folder / "endings.py").open("a") as stream:
        stream.write("# changed\n")
    done = lab.pilotkit(*sweep)
    assert done.returncode == 1, done.stdout
    assert "nothing was submitted: 1 field drifted from lock.pilotkit.yaml: model.revision: " in done.stderr
    assert lab.newest() == held

    lab.cluster.run("scontrol", "release", lab.array_id(held))
    ((status, why),) = lab.until_final(held)
    assert status == "refused"
    assert why.startswith("1 field drifted from lock.pilotkit.yaml: model.revision: ")


def test_no_slurm_on_this_machine(lab) -> None:
    done = lab.pilotkit("-m", "cluster=slurm", *LOCK, "train.seq_len=32,64", env={"PATH": "/nonexistent"})
    assert done.returncode == 1
    assert "login node" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_single_run_is_not_sent_to_slurm_in_silence(lab) -> None:
    done = lab.pilotkit("cluster=slurm", *LOCK)
    assert done.returncode == 2
    assert "add -m, or take cluster=local" in done.stderr


def test_variables_of_another_job_stay_behind(lab) -> None:
    foreign = {"SLURM_CPUS_PER_TASK": "7", "SLURM_NTASKS": "9", "SBATCH_PARTITION": "nope", "SLURM_MEM_PER_CPU": "1"}
    sweep = lab.submit(*LOCK, "train.micro_batch_size=1", env=foreign)
    assert lab.manifest(sweep)["removed_variables"] == sorted(foreign)
    assert lab.until_final(sweep) == [("ok", "")]
    point = json.loads((sweep / "0" / "point.json").read_text())
    provenance = json.loads((Path(point["run_dir"]) / "record.json").read_text())["provenance"]
    assert provenance["slurm"]["removed_variables"] == sorted(foreign)


@pytest.mark.parametrize("name", ['it\'s "two"  spaces', "größe-模型"], ids=["quotes", "unicode"])
def test_a_folder_with_an_awkward_name(lab, name: str) -> None:
    folder = lab.folder / name
    folder.mkdir()
    sweep = ("-m", "cluster=slurm", *LOCK, "train.seq_len=32,64", "cluster.time_minutes=10")
    done = lab.pilotkit(*sweep, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = next(folder.glob("outputs/*/sweeps/*"))
    assert [status for status, _ in lab.until_final(found)] == ["ok", "ok"]
    follow = next(line for line in done.stdout.splitlines() if line.startswith("follow it:"))
    command = follow.removeprefix("follow it:").strip().replace("pilotkit", f"{sys.executable} -m pilotkit", 1)
    shown = subprocess.run(command, shell=True, env=lab.environment(), capture_output=True, text=True, timeout=60)
    assert "2 points: 2 ok" in shown.stdout, shown.stdout + shown.stderr


def test_resume_runs_what_has_no_answer(lab) -> None:
    arguments = ("+model.kwargs.how=ok,raise", "cluster.array_parallelism=2")
    first = lab.submit(*arguments)
    # Submitted again while the first is under way: nothing is queued twice.
    twin = lab.submit(*arguments)
    assert {point["job_id"] for point in lab.manifest(twin)["points"]} == {None}
    assert [status for status, _ in lab.until_final(first)] == ["ok", "failed"]
    assert [status for status, _ in lab.truths(twin)] == ["ok", "failed"]
    again = lab.submit(*arguments)
    assert [point["job_id"] for point in lab.manifest(again)["points"]] == [None, None]
    assert [status for status, _ in lab.truths(again)] == ["ok", "failed"]
    failed = lab.submit(*arguments, "sweep.rerun=failed")
    assert [point["job_id"] is None for point in lab.manifest(failed)["points"]] == [True, False]
    new = lab.submit("+model.kwargs.how=ok,raise", "cluster.array_parallelism=2", "train.seq_len=48")
    assert [point["job_id"] is None for point in lab.manifest(new)["points"]] == [False, False]


def test_two_sweeps_at_once_do_not_mix(lab) -> None:
    command = [sys.executable, "-m", "pilotkit", "-m", "cluster=slurm", *LOCK, "cluster.time_minutes=10"]
    started = [
        subprocess.Popen(
            [*command, f"train.seq_len={length}"], cwd=lab.folder, env=lab.environment(), stdout=subprocess.DEVNULL
        )
        for length in ("32,64", "48,96")
    ]
    assert [process.wait(timeout=60) for process in started] == [0, 0]
    sweeps = sorted(lab.folder.glob("outputs/*/sweeps/*"))
    assert len(sweeps) == 2
    for sweep in sweeps:
        assert [status for status, _ in lab.until_final(sweep)] == ["ok", "ok"]
    lengths = [point["overrides"][-1] for sweep in sweeps for point in lab.manifest(sweep)["points"]]
    assert sorted(lengths) == sorted(f"train.seq_len={length}" for length in (32, 64, 48, 96))


def test_fifty_points_whose_submitter_is_killed(lab, told) -> None:
    """Killed the moment it has said what it submitted; the truths come from a new process."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "pilotkit", "-m", "cluster=slurm", *LOCK, "train.micro_batch_size=range(1,51)"),
            *("cluster.time_minutes=10", "cluster.array_parallelism=3"),
        ],
        cwd=lab.folder,
        env=lab.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("submitted"):
        pass
    process.send_signal(signal.SIGKILL)
    started = time.monotonic()
    process.wait()
    process.stdout.close()
    truths = lab.until_final(lab.newest(), seconds=240)
    told("submitter of 50 points killed once it has said `submitted`; until the last point is over", truths, started)
    assert [status for status, _ in truths] == ["ok"] * 50


def test_two_hundred_points_are_queued_and_accounted_for(lab, told) -> None:
    done = lab.pilotkit(
        *("-m", "cluster=slurm", *LOCK, "train.micro_batch_size=range(1,201)"),
        "+cluster.additional_parameters.hold=true",
    )
    assert done.returncode == 0, done.stderr
    sweep = lab.newest()
    assert {status for status, _ in lab.truths(sweep)} == {"pending"}
    # What is left has gaps: Slurm writes steps (`0-198:2`), and cuts longer lists short unless it is asked not to.
    array = lab.array_id(sweep)
    for gone in (range(1, 200, 2), range(0, 200, 6)):
        lab.cluster.run("scancel", *(f"{array}_{task}" for task in gone))
        found = [status for status, _ in lab.truths(sweep)]
        assert {found[task] for task in gone} == {"cancelled"}
        assert found.count("pending") == (100 if gone.step == 2 else 66)
    started = time.monotonic()
    lab.cluster.run("scancel", array)
    truths = lab.until_final(sweep)
    told("`scancel` of an array that had not begun", truths, started)
    assert truths == [("cancelled", "cancelled in Slurm")] * 200


def test_waiting_shows_every_end(lab) -> None:
    done = lab.pilotkit(
        *("-m", "cluster=slurm", "cluster.wait=true", *LOCK, "train.seq_len=32,64", "cluster.time_minutes=10")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 points: 2 ok. Sweep folder:" in done.stdout


def test_waiting_does_not_wait_for_jobs_that_somebody_holds(lab) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "pilotkit", "-m", "cluster=slurm", "cluster.wait=true", *LOCK),
            *("train.seq_len=32,64", "+cluster.additional_parameters.hold=true"),
        ],
        cwd=lab.folder,
        env=lab.environment({"PYTHONUNBUFFERED": "1"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert "not waited for, as only a person can let them go on" in out
    assert os.path.isdir(lab.newest())
