"""Hugging Face architectures through the stages as a user runs them: each a folder on the disk and a command line.

    python benchmarks/architectures.py [NAME ...] [--stages prove,measure,...] [--keep FOLDER]

Makes every model of small_models.py, offline: some as a bare `config.json`, some with weights, three with weights in
float16, one with a tokenizer and a text data set beside it, one as a factory. Prints a table, one
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
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import describe
from small_models import MODELS, VOCAB, Model

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("prove", "measure", "numerics", "pilot", "restore")
# A dozen steps and few repetitions: whether a model goes through is asked here, not how fast it is.
QUICK = (
    "train.micro_batch_size=2", "train.seq_len=32", "train.num_eval_batches=2",
    "data.num_workers=0", "measure.max_warmup_steps=6", "measure.num_measured_steps=5", "numerics.num_steps=6",
    "numerics.num_timed_steps=3", "pilot.max_warmup_steps=6", "pilot.num_measured_steps=5",
    "measure.loader_seconds=0.2", "train.global_batch_size=8",
)  # fmt: skip


def make(folder: Path, model: Model) -> None:
    """Write the model's folder, as it would come from a hub or from a colleague."""
    if model.config is None:
        return
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
    given = (
        "model=hf",
        f"model.name=models/{name}",
        "model.revision=null",
        f"model.kwargs.auto_class={model.auto_class}",
    )
    command = [
        sys.executable, "-m", "pilotkit", f"stage={stage}", f"name={name}", f"precision={model.precision}",
        *(given if model.config else ("model=custom",)), *QUICK, *model.data, *model.others, *overrides,
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
        verdict = details["precision"]["verdict"] if "precision" in details else "fp32 alone"
        return f"{verdict} {modes}".strip()
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
        print(
            f"{name:10} {model.about:42} {model.disk if model.config else 'factory':8} {seconds:4.0f} s | "
            + " | ".join(cells),
            flush=True,
        )
    if options.keep is None:
        shutil.rmtree(folder)
    print(f"{failed} stages did not get through" if failed else "every stage of every model got through")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
