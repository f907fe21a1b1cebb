"""The budget measures really, and plans of a sweep are all made: whole commands, from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RunCli = Callable[..., Any]


def _record(folder: Path, stage: str) -> dict[str, Any]:
    path = max((folder / "outputs" / "default" / stage).glob("*/record.json"))
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_the_budget_reads_and_copies(pilotkit_cli: RunCli, tmp_path: Path) -> None:
    text = tmp_path / "corpus"
    text.mkdir()
    (text / "a.txt").write_text("The quick brown fox jumps over the lazy dog. " * 20_000, encoding="utf-8")
    same = ["data=text_folder", f"data.path={text}", "parallelism=single", "parallelism.nproc_per_node=1"]
    same += ["train.micro_batch_size=2", "train.seq_len=32", "model.kwargs.num_layers=1"]
    proved = pilotkit_cli("stage=prove", *same)
    assert proved.returncode == 0, proved.stderr
    words = ["budget.copy_out_to=away", "prices.copies_out=3"]
    done = pilotkit_cli("stage=budget", *same, *words)
    assert done.returncode == 0, done.stderr
    record = _record(tmp_path, "budget")
    metrics, lines = record["metrics"], {line["part"]: line for line in record["details"]["ledger"]}
    size = sum(path.stat().st_size for path in text.iterdir())
    assert metrics["source_bytes"] == metrics["source_read_bytes"] == size
    assert lines["download"]["origin"] == lines["copy-out"]["origin"] == "measured"
    assert lines["copy-out"]["seconds"] == 3 * metrics["copy_out_seconds"]
    assert "the same by SHA-256" in lines["copy-out"]["how"]
    assert list((tmp_path / "away").iterdir()) == []


def test_every_reservation_of_a_sweep_is_planned(pilotkit_cli: RunCli, tmp_path: Path) -> None:
    """Hardware that is not here, and no evidence: each point says what is missing, and none ends the others."""
    done = pilotkit_cli("-m", "stage=plan", "reservation=7d,30d", "hardware=h100,mi300x", "parallelism=fsdp")
    assert done.returncode == 0, done.stderr
    assert "4 points: 4 ok" in done.stdout
    assert done.stdout.count("INCOMPLETE") >= 4
    assert "pilotkit stage=measure reservation=7d hardware=h100 parallelism=fsdp" in done.stdout
    records = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/plan/*/record.json")]
    assert [record["details"]["recommended"] for record in records] == [None] * 4
    amd = [record for record in records if record["config"]["hardware"]["name"] == "mi300x"]
    decisions = [[item["decision"] for item in record["details"]["options"]] for record in amd]
    assert decisions == [["open"]] * 2
    reasons = [record["details"]["options"][0]["reason"] for record in amd]
    assert all(
        "larger memory per device (191.98 GiB against 79.14 GiB of an A100), not qualified" in r for r in reasons
    )
    command = "pilotkit stage=qualify reservation=7d hardware=mi300x parallelism=fsdp"
    assert any(text.startswith(command) for record in amd for text in record["details"]["options"][0]["commands"])


def test_wrong_prices_are_told_together(pilotkit_cli: RunCli) -> None:
    done = pilotkit_cli("stage=plan", "prices.per_gpu_hour={h100:-1}", "prices.as_of=yesterday")
    assert done.returncode == 2
    assert "2 problems" in done.stderr
    assert "prices.per_gpu_hour.h100=-1" in done.stderr
    assert "prices.as_of=yesterday" in done.stderr
