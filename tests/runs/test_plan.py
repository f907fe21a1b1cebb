"""The budget measures really, and plans of a sweep are all made: whole commands, from outside."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import serving

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


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """A server that answers as the hub does for `org/net`, 3 MB of it; yields its address and what was asked."""
    asked: list[str] = []
    files = {"model.safetensors": 2_000_000, "config.json": 1_000, "pytorch_model.bin": 999_000}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            file = self.path.rpartition("/")[2]
            if self.path.startswith("/api/models/org/net/revision/main"):
                siblings = [{"rfilename": name, "size": size} for name, size in files.items()]
                body = json.dumps({"id": "org/net", "sha": "a1" * 20, "siblings": siblings}).encode()
            elif file in files:
                body = b"0" * files[file]
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the reader has had enough
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with serving(Handler) as address:
        yield address, asked


def test_a_download_from_the_hub_is_timed(
    pilotkit_cli: RunCli, tmp_path: Path, hub: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, asked = hub
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    words = ("stage=budget", "model=hf", "model.name=org/net", "data=stdlib", "budget.max_read_bytes=500000")
    done = pilotkit_cli(*words)
    assert done.returncode == 0, done.stderr
    record = _record(tmp_path, "budget")
    # Weights in their old form are not brought: 2,001,000 bytes, of which the first 500,000 were read.
    assert record["metrics"]["source_bytes"] == 2_001_000
    assert record["metrics"]["source_read_bytes"] == 500_000
    (line,) = [line for line in record["details"]["ledger"] if line["part"] == "download"]
    assert line["origin"] == "measured"
    assert line["how"].endswith("from the hub: org/net")
    assert line["seconds"] == pytest.approx(2_001_000 / record["metrics"]["source_bytes_per_second"])
    assert [path.rpartition("/")[2] for path in asked if "/resolve/" in path] == ["model.safetensors"]
    assert f"/resolve/{'a1' * 20}/" in asked[-1]

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pilotkit_cli(*words).returncode == 0
    record = _record(tmp_path, "budget")
    assert "the download of org/net was not timed: HF_HUB_OFFLINE is set" in record["details"]["warnings"]
    (line,) = [line for line in record["details"]["ledger"] if line["part"] == "download"]
    assert (line["seconds"], line["origin"]) == (None, "not run")


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
