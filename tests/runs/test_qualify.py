"""Stage `qualify` from outside: a set that is fit, and one with every fault at once, each with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pilotkit.decide.qualify import MENDS

# An operator of the user's own whose gradient formula is wrong, in a model that is otherwise sound.
WRONG = """
import torch
from torch import nn

library = torch.library.Library("theirs", "DEF")
library.define("square(Tensor x) -> Tensor")
library.impl("square", lambda x: x * x, "CPU")
torch.library.register_autograd(
    "theirs::square", lambda ctx, g: 3 * g * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs), lib=library,
)


class Theirs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(256, 8), nn.Linear(8, 256)

    def forward(self, input_ids, labels):
        logits = self.head(torch.ops.theirs.square(self.embed(input_ids)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return type("Output", (), {"loss": loss, "logits": logits})()


def build():
    return Theirs()
"""


def _record(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("outputs/*/qualify/*/record.json")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def test_a_sound_set_is_qualified(pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]) -> None:
    more = ("qualify.kernels=[aten::embedding]", "qualify.attention_backends=[math]", 'qualify.packages=["torch>=2"]')
    result = pilotkit_cli("stage=qualify", *mine, *more, "precision=bf16_mixed", "parallelism=fsdp")
    assert result.returncode == 0, result.stdout + result.stderr
    details = _record(tmp_path)["details"]
    assert details["verdict"] == "qualified"
    assert len(details["set_digest"]) == 64
    found = {(row["check"], row["subject"]): row["verdict"] for row in details["card"]}
    for check, subject in (
        ("operator", "aten::addmm bfloat16"), ("operator", "aten::nll_loss_forward float32"),
        ("gradient", "whole model"), ("kernel", "aten::embedding"), ("attention backend", "math"),
        ("collective", "reduce_scatter float32"), ("collective", "all_gather float32"), ("package", "torch>=2"),
    ):  # fmt: skip
        assert found[check, subject] == "PASS", found
    assert found["speed", "matrix product in bf16"] == "NOT RUN"  # the CPU's option promises nothing


def test_every_fault_is_named(pilotkit_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(WRONG, encoding="utf-8")
    (tmp_path / "does_nothing.py").write_text("def fused(x):\n    return x\n", encoding="utf-8")
    result = pilotkit_cli(
        "stage=qualify", "model=custom", "model.factory=theirs:build", "data=synthetic", "train.micro_batch_size=2",
        "train.seq_len=16", "parallelism=single", "parallelism.nproc_per_node=1",
        "qualify.extensions=[does_nothing]", "qualify.kernels=[theirs::gone]", 'qualify.packages=["flash-attn>=2.6"]',
        "+hardware.peak_flops.fp32=1e18", "hardware.memory_bandwidth_bytes_per_second=1e18",
    )  # fmt: skip
    assert result.returncode == 1
    record = _record(tmp_path)
    assert (record["status"], record["details"]["verdict"]) == ("mismatch", "not qualified")
    failed = {
        (row["check"], row["subject"]): row["note"] for row in record["details"]["card"] if row["verdict"] == "FAIL"
    }
    assert failed.keys() == {
        ("package", "flash-attn>=2.6"), ("extension", "does_nothing"), ("kernel", "theirs::gone"),
        ("operator", "theirs::square float32"), ("gradient", "whole model"),
        ("speed", "matrix product in fp32"), ("speed", "copy on the device"),
    }  # fmt: skip
    assert failed["operator", "theirs::square float32"].startswith("its gradient is wrong: the slope is ")
    assert "no kernel of it ran in the step" in failed["extension", "does_nothing"]
    assert failed["kernel", "theirs::gone"].startswith("no operator of this name is registered")
    assert "a slow card, or another one" in failed["speed", "matrix product in fp32"]
    assert "embed.weight" in failed["gradient", "whole model"]
    assert (
        "qualify mismatch: not qualified: package flash-attn>=2.6: is not installed; install that version, or correct "
        "qualify.packages (and 6 more)"
    ) in result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for (check, subject), note in failed.items():  # each by its name, once, and with what can be done about it
        assert sum(line.startswith(f"{check} {subject} FAIL ") for line in lines) == 1, result.stdout
        assert note.endswith(MENDS[check])


def test_a_step_that_ends_in_a_missing_kernel_names_it(pilotkit_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(WRONG.replace('"CPU")', '"CUDA")'), encoding="utf-8")
    result = pilotkit_cli(
        "stage=qualify", "model=custom", "model.factory=theirs:build", "data=synthetic", "train.micro_batch_size=2",
        "train.seq_len=16", "parallelism=single", "parallelism.nproc_per_node=1",
    )  # fmt: skip
    assert result.returncode == 1, result.stdout
    notes = [row["note"] for row in _record(tmp_path)["details"]["card"] if row["subject"] == "theirs::square"]
    assert notes[0].startswith("the step ends here: NotImplementedError: Could not run 'theirs::square'")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("qualify.kernels=[fused]", "operators as `namespace::name`"),
        ("qualify.attention_backends=[fast]", "a list out of flash, efficient, cudnn, math"),
        ("qualify.packages=['a b']", "a requirement as pip writes it"),
    ],
)
def test_a_list_with_a_mistake_is_refused(pilotkit_cli: Any, override: str, words: str) -> None:
    result = pilotkit_cli("stage=qualify", override)
    assert result.returncode == 2
    assert words in result.stderr
