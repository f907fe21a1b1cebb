"""`restore.script` from the command line: torchrun, two ranks, a real kill -9, scripts that do not do their part."""

from __future__ import annotations

import json
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "torch" / "restore" / "scripts"
TWO = ("stage=restore", "hardware.device_count=2", "parallelism.nproc_per_node=2", "restore.num_steps=2")


def test_a_script_that_is_killed_comes_back_on_every_rank(pilotkit_cli, tmp_path):
    (tmp_path / "train.py").write_text((SCRIPTS / "own_loop.py").read_text())
    done = pilotkit_cli(*TWO, "restore.script=train.py", timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("outputs/default/restore/*/record.json")
    record = json.loads(path.read_text())
    rows = {row["component"]: row for row in record["details"]["comparison"]}
    assert {row["verdict"] for row in rows.values()} == {"PASS"}
    assert rows["parameters restored"]["note"] == "8 parts, bit for bit"  # four of each rank
    assert rows["losses after the restore"]["note"] == "4 values, bit for bit"
    logs = {log.parent.name: log.read_text() for log in path.parent.glob("phases/script_*/log.txt")}
    assert "exitcode  : -9" in logs["script_killed"]
    assert (path.parent / record["artifacts"]["checkpoint"] / "checkpoint-1.pt").is_file()


def test_accelerate_in_the_middle_of_its_second_epoch(pilotkit_cli, tmp_path):
    """`save_state` and `load_state`, each rank with rows of its own."""
    (tmp_path / "train.py").write_text((SCRIPTS / "accelerate_loop.py").read_text())
    saved_after_three = ("restore.num_steps=3", 'restore.args=["--epoch-steps=2"]')
    done = pilotkit_cli(*TWO, *saved_after_three, "restore.script=train.py", timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("outputs/default/restore/*/record.json")
    rows = {row["component"]: row for row in json.loads(path.read_text())["details"]["comparison"]}
    assert {row["verdict"] for row in rows.values()} == {"PASS"}
    assert rows["parameters restored"]["note"] == "8 parts, bit for bit"  # four of each rank
    assert rows["losses after the restore"]["note"] == "6 values, bit for bit"


def test_a_script_that_leaves_no_trace(pilotkit_cli, tmp_path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = pilotkit_cli(*TWO, "restore.script=train.py")
    assert done.returncode == 1
    assert "the script left a trace of its steps on 0 of 2 ranks" in done.stderr
    assert "pilotkit.train.run_trace.RunTrace" in done.stderr


def test_a_script_that_is_not_there(pilotkit_cli):
    done = pilotkit_cli("stage=restore", "restore.script=nowhere.py")
    assert done.returncode == 2
    assert "restore.script=" in done.stderr
    assert "a Python file that exists" in done.stderr
