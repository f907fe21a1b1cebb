"""Stage `numerics` as a user runs it: verdicts of real precisions, a planted NaN, recomputation with dropout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import PilotkitCli
from tests.runs.documented import undocumented

TINY = (
    "model.kwargs.hidden_size=32",
    "model.kwargs.num_layers=2",
    "model.kwargs.dropout=0.1",
    "train.seq_len=32",
    "optimizer.lr=3e-3",
    "measure.num_warmup_steps=1",
    "numerics.num_timed_steps=3",
)
NAN_MODEL = """
import torch
from pilotkit.train.models import gpt

class Poison(torch.nn.Module):
    def forward(self, x):
        # In float16 the square of what is above 256 overflows; in float32 nothing happens.
        return x * ((x * 0 + 300.0) ** 2 / 90000.0)

def build(**kwargs):
    model = gpt.build(vocab_size=256, num_layers=2, num_heads=2, hidden_size=32, max_seq_len=64, dropout=0.0,
                      tie_embeddings=True)
    model.blocks[1].mlp.down = torch.nn.Sequential(model.blocks[1].mlp.down, Poison())
    return model
"""


def _record(folder: Path) -> dict[str, Any]:
    [path] = folder.glob("outputs/default/numerics/*/record.json")
    return json.loads(path.read_text())


def test_mixed_precision_is_accepted_and_recomputation_is_equal_with_dropout(
    pilotkit_cli: PilotkitCli, tmp_path: Path
) -> None:
    result = pilotkit_cli("stage=numerics", "precision=bf16_mixed", *TINY, timeout=280)
    assert result.returncode == 0, result.stderr
    record = _record(tmp_path)
    details, metrics = record["details"], record["metrics"]
    assert details["precision"]["verdict"] == "accept", details["precision"]
    assert undocumented(metrics) == []
    assert metrics["repeatable"] == 1.0
    assert 0 < metrics["grad_deviation"] < metrics["grad_noise"]
    # On the CPU, attention with dropout has no bfloat16 kernel: torch computes it in float32, and that is told.
    assert details["candidate"]["leaks"] == ["blocks.0.attention", "blocks.1.attention"]
    assert "matrix products in another dtype than bfloat16: blocks.0.attention" in result.stdout
    assert details["reference"]["switches"] == {"matmul_allow_tf32": False, "cudnn_allow_tf32": False}
    rows = {row["mode"]: row for row in details["recomputation"]}
    assert all(rows[mode]["differs"] == "" for mode in ("full", "selective")), rows
    assert metrics["full_saved_bytes"] > metrics["selective_saved_bytes"] > 0
    assert not list(tmp_path.glob("outputs/**/gradients.pt"))


def test_an_overflow_names_its_module(pilotkit_cli: PilotkitCli, tmp_path: Path) -> None:
    (tmp_path / "poisoned.py").write_text(NAN_MODEL)
    result = pilotkit_cli(
        "stage=numerics", "precision=fp16_mixed", "model=custom", "model.factory=poisoned:build",
        "train.seq_len=32", "numerics.modes=[]", "numerics.num_steps=20", timeout=280,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    details = _record(tmp_path)["details"]
    assert details["precision"]["verdict"] == "reject"
    assert "nan in the output of blocks.1.mlp.down.1" in " ".join(details["precision"]["reasons"])
    assert details["candidate"]["candidate"]["scales"][:2] == [65536.0, 32768.0]
    assert "reject" in result.stdout
