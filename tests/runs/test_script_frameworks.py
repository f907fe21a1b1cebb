"""Scripts of transformers' Trainer and of Lightning as users have them go through `pilot.script` unchanged."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.conftest import PilotkitCli

SCRIPTS = Path(__file__).with_name("foreign")
WORDS = ["the", "a", "cat", "dog", "sees", "hears", "one", "two", "big", "small"]


@pytest.mark.parametrize(
    ("script", "arguments", "num_steps"),
    [
        (
            "run_lm.py",
            "--train_file,text.txt,--output_dir,out,--do_train,--do_eval,--max_steps,'7',--use_cpu,--report_to,none,"
            "--per_device_train_batch_size,'4',--gradient_accumulation_steps,'2',--max_grad_norm,'1.0'",
            7,
        ),
        ("fit.py", "--devices,'2',--workers,'1',--start-method,spawn,--rows,'96'", 6),
    ],
)
def test_a_trainers_script_as_it_is(
    pilotkit_cli: PilotkitCli, tmp_path: Path, script: str, arguments: str, num_steps: int
) -> None:
    """Training, a last evaluation, and an end by `sys.exit`: every optimizer step of both ranks is counted once."""
    draw = random.Random(0)
    (tmp_path / "text.txt").write_text("\n".join(" ".join(draw.choices(WORDS, k=20)) for _ in range(64)))
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    result = pilotkit_cli(
        "stage=pilot", f"pilot.script={SCRIPTS / script}", f"pilot.args=[{arguments}]", "pilot.tokens_per_step=512",
        "pilot.allow_idle_devices=false", env=offline,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    [path] = tmp_path.glob("outputs/default/pilot/*/record.json")
    metrics = json.loads(path.read_text())["metrics"]
    assert metrics["script_num_warmup_steps"] + metrics["script_num_measured_steps"] == num_steps
    assert metrics["script_world_size"] == 2
    [meter] = path.parent.glob("phases/script/meter-1.json")
    assert len(json.loads(meter.read_text())["step_seconds"]) == num_steps
