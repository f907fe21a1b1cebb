"""`pilot.script`: a user's own distributed script under torchrun, what its meter left, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PilotkitCli
from tests.runs.documented import undocumented

SCRIPT = """
import argparse, os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from pilotkit.meter import StepMeter

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--fail-on", type=int, default=-1)
parser.add_argument("--config")
args = parser.parse_args()
assert args.config == "a b.yaml", args.config

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
meter = StepMeter(tokens_per_step=1000, num_warmup_steps=2)
for step in range(args.steps):
    with meter.step():
        with meter.section("data_wait"):
            batch = torch.randn(8, 64)
            time.sleep(0.01)
        if dist.get_rank() == args.fail_on:
            raise ValueError("bad row 17")
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
meter.close()
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "train.py").write_text(SCRIPT)
    return ("stage=pilot", "pilot.script=train.py", "pilot.allow_idle_devices=false")


def _record(folder: Path) -> dict[str, Any]:
    [path] = folder.glob("outputs/default/pilot/*/record.json")
    return json.loads(path.read_text())


def test_a_script_is_measured_on_every_rank(pilotkit_cli: PilotkitCli, tmp_path: Path, script: tuple[str, ...]) -> None:
    result = pilotkit_cli(*script, "pilot.args=[--config,a b.yaml,--steps,12]")
    assert result.returncode == 0, result.stderr
    record = _record(tmp_path)
    metrics = record["metrics"]
    assert undocumented(metrics) == []
    assert (metrics["script_num_warmup_steps"], metrics["script_num_measured_steps"]) == (2, 10)
    assert (metrics["script_world_size"], metrics["script_tokens_per_step"]) == (2, 1000)
    assert metrics["script_step_seconds"] >= metrics["script_data_wait_seconds"] >= 0.01
    assert metrics["script_tokens_per_second"] == pytest.approx(1000 / metrics["script_step_seconds"])
    assert len(record["details"]["strategies"]["script"]["devices"]) == 2
    assert record["origins"]["script_step_seconds"] == "measured"
    [meter] = tmp_path.glob("outputs/default/pilot/*/phases/script/meter-1.json")
    assert json.loads(meter.read_text())["metrics"]["world_size"] == 2


def test_a_script_that_fails_and_one_without_a_meter(
    pilotkit_cli: PilotkitCli, tmp_path: Path, script: tuple[str, ...]
) -> None:
    result = pilotkit_cli(*script, "pilot.args=[--config,a b.yaml,--fail-on,1]", "name=fails")
    assert result.returncode == 1
    # The cause, and not that torchrun has seen a child fail.
    assert "pilot failed: rank 1: ValueError: bad row 17" in result.stderr
    [path] = tmp_path.glob("outputs/fails/pilot/*/record.json")
    problem = json.loads(path.read_text())["problem"]
    assert problem["rank"] == 1
    assert problem["traceback"].endswith("ValueError: bad row 17")
    assert "train.py" in problem["traceback"]
    (tmp_path / "train.py").write_text("print('trained')\n")
    result = pilotkit_cli(*script, "name=silent")
    assert result.returncode == 1
    assert "the script ended well and left no measurement" in result.stderr


PLAIN = """
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import beside  # a module in the script's own folder

assert __name__ == "__main__" and sys.argv[1:] == ["--steps", "9"], sys.argv
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizers = [torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)]
for step in range(beside.STEPS):
    model(torch.randn(4, 8)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
dist.destroy_process_group()
sys.exit(0)
"""


def test_a_script_that_knows_nothing_of_it_is_watched(pilotkit_cli: PilotkitCli, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.py").write_text(PLAIN)
    (tmp_path / "own" / "beside.py").write_text("STEPS = 9\n")
    arguments = (
        "stage=pilot", "pilot.script=own/train.py", "pilot.args=[--steps,'9']", "pilot.tokens_per_step=256",
    )  # fmt: skip
    result = pilotkit_cli(*arguments)
    assert result.returncode == 0, result.stderr
    metrics = _record(tmp_path)["metrics"]
    # One optimizer of the two is followed: nine steps and not eighteen.
    assert metrics["script_num_warmup_steps"] + metrics["script_num_measured_steps"] == 9
    assert (metrics["script_tokens_per_step"], metrics["script_world_size"]) == (256, 2)


def test_a_script_that_is_not_there(pilotkit_cli: PilotkitCli) -> None:
    result = pilotkit_cli("stage=pilot", "pilot.script=nowhere.py")
    assert result.returncode == 2
    assert "a Python file that exists" in result.stderr
