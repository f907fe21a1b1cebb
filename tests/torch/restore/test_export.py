"""The export, read by a process that has none of our code: clean names, tied tensors, the same evaluation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import pilotkit.worker
from pilotkit.train import checkpoint
from pilotkit.train.export import export
from pilotkit.train.tensors import plain_name

READER = Path(pilotkit.worker.__file__).with_name("read_export.py")
PLAIN = Path(__file__).with_name("plain_gpt.py")


def read(folder: Path, *options: str) -> tuple[int, dict[str, tuple[str, str]]]:
    command = [sys.executable, "-I", "-W", "ignore", str(READER), str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.stdout, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    return done.returncode, {row["component"]: (row["verdict"], row["note"]) for row in rows}


def compiled(model: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize(
    "options", [{}, {"wrap": compiled, "activations": "full"}], ids=["plain", "compiled and recomputed"]
)
def test_a_stranger_reads_it_and_evaluates_alike(options, workload, tmp_path):
    trainer = workload.build_trainer(**options)
    trainer.train_step()
    saved = checkpoint.save(trainer, tmp_path / "c", config_text="")
    export(trainer, tmp_path / "export")
    description = json.loads((tmp_path / "export" / "export.json").read_text())
    assert description["tied"] == {"lm_head.weight": "token_embedding.weight"}
    assert "blocks.0.mlp.up.weight" in description["tensors"]
    written = safetensors.torch.load_file(tmp_path / "export" / "model.safetensors")
    num_params = sum(parameter.numel() for parameter in trainer.model.parameters())  # torch counts a tied one once
    assert sum(tensor.numel() for tensor in written.values()) == num_params, "the file is not doubled"
    assert not any(word in name for name in description["tensors"] for word in ("_orig_mod", "module", "_checkpoint"))
    code, rows = read(tmp_path / "export", "--checkpoint", str(saved.path), "--model", f"{PLAIN}:build")
    assert code == 0, rows
    assert [verdict for verdict, _ in rows.values()] == ["PASS", "PASS", "PASS"]
    assert "bit for bit" in rows["export: torch's own consolidation"][1]


def test_a_hugging_face_model_is_built_from_its_own_config_and_evaluates_alike(workload, tmp_path):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=16, tie_word_embeddings=True,
    )  # fmt: skip
    trainer = workload.build_trainer(model=transformers.LlamaForCausalLM(config), wrap=compiled)
    trainer.train_step()
    saved = checkpoint.save(trainer, tmp_path / "c", config_text="")
    export(trainer, tmp_path / "export")
    assert json.loads((tmp_path / "export" / "export.json").read_text())["tied"] == {
        "lm_head.weight": "model.embed_tokens.weight"
    }
    code, rows = read(tmp_path / "export", "--checkpoint", str(saved.path))
    assert code == 0, rows
    assert rows["export: evaluation by the plain model"][0] == "PASS", rows


def test_what_was_changed_on_the_way_is_named(faults, workload, tmp_path):
    trainer = workload.build_trainer()
    export(trainer, tmp_path / "export")
    path = tmp_path / "export" / "model.safetensors"
    faults.flip_a_bit(path, offset=path.stat().st_size - 1)
    code, rows = read(tmp_path / "export", "--model", f"{PLAIN}:build")
    assert code == 1
    assert rows["export: every tensor"][0] == "FAIL"
    assert "its sha256 differs" in rows["export: every tensor"][1]


def test_without_a_plain_class_the_evaluation_is_not_run(workload, tmp_path):
    export(workload.build_trainer(), tmp_path / "export")
    code, rows = read(tmp_path / "export")
    assert code == 0
    assert rows["export: evaluation by the plain model"][0] == "NOT RUN"


@pytest.mark.parametrize("name", ["module._orig_mod.a.weight", "_orig_mod.module.a.weight", "a.weight"])
def test_names_are_those_of_the_plain_model_in_whatever_order_it_is_wrapped(name):
    assert plain_name(name) == "a.weight"
