"""Hugging Face architectures through the stages as a user runs them: each a folder on the disk and a command line.

    python benchmarks/architectures.py [NAME ...] [--stages prove,measure,...] [--keep FOLDER]

Makes every model small and random from transformers' own configuration class, offline: some as a bare `config.json`,
some with weights, two with weights in float16, one with a tokenizer and a text data set beside it. Prints a table, one
row a model and one cell a stage: the status of its record, and what it found. Exits 1 when a stage did not get through.
`estimate` may be named among the stages too. Needs the `hf` extra. About two minutes a model on two cores, most of it
starting processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import describe

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("prove", "measure", "numerics", "pilot", "restore")
VOCAB = 512
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {"vocab_size": VOCAB, "max_position_embeddings": 128, **SMALL}
# A dozen steps and few repetitions: whether a model goes through is asked here, not how fast it is.
QUICK = (
    "precision=bf16_mixed", "train.micro_batch_size=2", "train.seq_len=32", "train.num_eval_batches=2",
    "data.num_workers=0", "measure.max_warmup_steps=6", "measure.num_measured_steps=5", "numerics.num_steps=6",
    "numerics.num_timed_steps=3", "pilot.max_warmup_steps=6", "pilot.num_measured_steps=5",
    "measure.loader_seconds=0.2", "train.global_batch_size=8",
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """One architecture. `config` makes its configuration; `disk` is what lies in its folder; `data` the overrides."""

    about: str
    config: Callable[[], Any]
    auto_class: str = "AutoModelForCausalLM"
    disk: str = "config"
    """`config`, `float32`, `float16`, or `text`: float32 weights, a tokenizer, and a data set of text."""
    data: tuple[str, ...] = ("data=synthetic", f"data.kwargs.vocab_size={VOCAB}")


def rows(name: str, **kwargs: int) -> tuple[str, ...]:
    """Overrides for a factory of head_rows.py."""
    options = ", ".join(f"{key}: {value}" for key, value in kwargs.items())
    return ("data=custom", f"data.factory=head_rows:{name}", "data.name=" + name, f"data.kwargs={{{options}}}")


MODELS: dict[str, Model] = {
    "gpt2": Model(
        "causal LM, tied",
        lambda: transformers.GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=64, n_layer=2, n_head=4),
    ),
    "llama": Model(
        "causal LM, untied, grouped queries",
        lambda: transformers.LlamaConfig(**TEXT, num_key_value_heads=2, tie_word_embeddings=False),
    ),
    "qwen2": Model(
        "causal LM, tied, own tokenizer and text",
        lambda: transformers.Qwen2Config(**TEXT, num_key_value_heads=2, tie_word_embeddings=True),
        disk="text",
        data=("data=hf", "data.name=text", "data.kwargs.tokenizer=models/qwen2"),
    ),
    "gpt_neox": Model(
        "causal LM, untied, float16 on disk",
        lambda: transformers.GPTNeoXConfig(**TEXT, tie_word_embeddings=False),
        disk="float16",
    ),
    "mixtral": Model(
        "mixture of experts, untied",
        lambda: transformers.MixtralConfig(
            **TEXT, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
        ),
    ),
    "qwen2_moe": Model(
        "mixture of experts with a shared one, tied",
        lambda: transformers.Qwen2MoeConfig(
            **TEXT,
            num_key_value_heads=2,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
            output_router_logits=True,
            tie_word_embeddings=True,
        ),
    ),
    "bert": Model(
        "masked LM, tied",
        lambda: transformers.BertConfig(**TEXT),
        auto_class="AutoModelForMaskedLM",
        disk="float32",
        data=rows("masked", vocab_size=VOCAB),
    ),
    "deberta": Model(
        "masked LM, relative positions",
        lambda: transformers.DebertaV2Config(**TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"]),
        auto_class="AutoModelForMaskedLM",
        data=rows("masked", vocab_size=VOCAB),
    ),
    "t5": Model(
        "encoder-decoder, tied",
        lambda: transformers.T5Config(
            vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
        ),
        auto_class="AutoModelForSeq2SeqLM",
        data=rows("translated", vocab_size=VOCAB),
    ),
    "bart": Model(
        "encoder-decoder, tied, float16 on disk",
        lambda: transformers.BartConfig(
            vocab_size=VOCAB,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            max_position_embeddings=128,
        ),
        auto_class="AutoModelForSeq2SeqLM",
        disk="float16",
        data=rows("translated", vocab_size=VOCAB),
    ),
    "vit": Model(
        "vision, transformer",
        lambda: transformers.ViTConfig(**SMALL, image_size=32, patch_size=8, num_labels=10),
        auto_class="AutoModelForImageClassification",
        disk="float32",
        data=rows("images", size=32, num_labels=10),
    ),
    "resnet": Model(
        "vision, convolutions with batch norm",
        lambda: transformers.ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic", num_labels=10
        ),
        auto_class="AutoModelForImageClassification",
        data=rows("images", size=32, num_labels=10),
    ),
    "wav2vec2": Model(
        "speech, CTC",
        lambda: transformers.Wav2Vec2Config(
            **SMALL,
            vocab_size=32,
            conv_dim=(32, 32, 32),
            conv_stride=(5, 4, 4),
            conv_kernel=(10, 8, 4),
            num_feat_extract_layers=3,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            mask_time_length=2,
            layerdrop=0.0,
        ),
        auto_class="AutoModelForCTC",
        data=rows("waves", num_samples=4000, vocab_size=32, num_labels=8),
    ),
    "whisper": Model(
        "speech, encoder-decoder",
        lambda: transformers.WhisperConfig(
            vocab_size=VOCAB,
            num_mel_bins=16,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            max_source_positions=50,
            max_target_positions=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
        auto_class="AutoModelForSpeechSeq2Seq",
        data=rows("spectra", num_bins=16, num_frames=100, vocab_size=VOCAB),
    ),
}


def make(folder: Path, model: Model) -> None:
    """Write the model's folder, as it would come from a hub or from a colleague."""
    config = model.config()
    if model.disk == "config":
        config.save_pretrained(folder)
        return
    torch.manual_seed(0)
    built = getattr(transformers, model.auto_class).from_config(config)
    built.to(torch.float16 if model.disk == "float16" else torch.float32).save_pretrained(folder)
    if model.disk == "text":
        _make_tokenizer(folder)
        _make_text(folder.parents[1] / "text")


def _make_tokenizer(folder: Path) -> None:
    """Byte-pair encoding, trained on what lies here."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(_texts(), trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)


def _make_text(folder: Path) -> None:
    from datasets import Dataset

    Dataset.from_dict({"text": _texts()}).save_to_disk(folder)


def _texts() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((ROOT / "pilotkit" / "meter").glob("*.py"))]


def run_stage(
    folder: Path, name: str, model: Model, stage: str, overrides: list[str]
) -> tuple[str, dict[str, Any], str]:
    """`(status, record, what was printed)` of one command."""
    command = [
        sys.executable, "-m", "pilotkit", f"stage={stage}", f"name={name}", "model=hf", f"model.name=models/{name}",
        "model.revision=null", f"model.kwargs.auto_class={model.auto_class}", *QUICK, *model.data, *overrides,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found = sorted(folder.glob(f"outputs/{name}/{stage}/*/record.json"))
    record = json.loads(found[-1].read_text(encoding="utf-8")) if found else {}
    status = record.get("status", f"exit {done.returncode}")
    return status, record, done.stdout + done.stderr


def summary(stage: str, record: dict[str, Any]) -> str:
    """What the stage found, in a few characters."""
    metrics, details = record["metrics"], record["details"]
    if stage == "estimate":
        return f"{metrics['peak_allocated_bytes'] / 1e6:.1f} MB"
    if stage == "prove":
        return f"loss {metrics['first_loss']:.2f}>{metrics['last_loss']:.2f}"
    if stage == "measure":
        return f"{metrics['peak_allocated_bytes'] / 1e6:.1f} MB {metrics['step_seconds'] * 1e3:.0f} ms"
    if stage == "numerics":
        modes = " ".join(f"{row['mode']}:{row['status']}" for row in details["recomputation"] if row["status"] != "ok")
        return f"{details['precision']['verdict']} {modes}".strip()
    if stage == "pilot":
        bad = [f"{name}:{item['status']}" for name, item in details["strategies"].items() if item["status"] != "ok"]
        return " ".join(bad) or " ".join(details["strategies"])
    return "equal" if record["status"] == "ok" else "differs"


def main() -> int:
    """Run every model through every stage and print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    parser.add_argument("--override", action="append", default=[], help="one more override for every command")
    options = parser.parse_args()
    stages = options.stages.split(",")
    print(describe("torch", "transformers"))
    folder = options.keep or Path(tempfile.mkdtemp())
    (folder / "models").mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("head_rows.py"), folder)
    failed = 0
    for name in options.names or MODELS:
        model = MODELS[name]
        make(folder / "models" / name, model)
        started, cells = time.monotonic(), []
        for stage in stages:
            status, record, printed = run_stage(folder, name, model, stage, options.override)
            good = status == "ok"
            bad = [] if not good or stage != "pilot" else [s for s in summary(stage, record).split() if ":" in s]
            failed += not good or bool(bad)
            cells.append(f"{stage} {summary(stage, record) if good else status.upper()}")
            if not good:
                print(printed, file=sys.stderr)
        seconds = time.monotonic() - started
        print(f"{name:10} {model.about:42} {model.disk:8} {seconds:4.0f} s | " + " | ".join(cells), flush=True)
    if options.keep is None:
        shutil.rmtree(folder)
    print(f"{failed} stages did not get through" if failed else "every stage of every model got through")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
