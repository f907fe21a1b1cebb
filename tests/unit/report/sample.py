"""Records as a finished study leaves them, for the tests of the report: one that says GO, one NO-GO, one INCOMPLETE.

Loaded by path (`runpy.run_path`) from the conftest files of tests/unit/report and tests/browser.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

from pilotkit.decide.cost import Prices
from pilotkit.decide.failures import FailureModel
from pilotkit.decide.ledger import Given, build_ledger
from pilotkit.decide.planning import Question, make_plan
from pilotkit.decide.study import Candidate
from pilotkit.decide.verdict import Verdict, decide_verdict
from pilotkit.decide.workload import Assumptions
from pilotkit.records.record import Failure, Record
from pilotkit.units import GIB, MIB

LOCK = "sha256:5f2c"
HOSTILE = '<script>alert("x")</script>'
SUMMARY = {
    "name": "tiny-on-cpu",
    "total_tokens": 100_000_000,
    "hardware": {"name": "cpu", "device_count": 2, "memory_bytes": 4 * GIB},
    "train": {"micro_batch_size": 4, "seq_len": 128, "global_batch_size": 8, "grad_accum_steps": None},
    "choices": {"model": "gpt_tiny", "precision": "fp32", "parallelism": "ddp", "deterministic": True},
}

CONFIG: dict[str, Any] = {
    "hardware": {"name": "cpu", "device_type": "cpu", "device_count": 2, "memory_bytes": 4 * GIB},
    "parallelism": {"strategy": "ddp", "num_nodes": 1},
    "precision": {"name": "fp32"},
    "train": {
        "micro_batch_size": 4, "seq_len": 128, "global_batch_size": None, "total_tokens": 100_000_000,
        "checkpoint_every_steps": 1000,
    },
}  # fmt: skip


def _record(stage: str, number: int, root: Path, metrics: dict[str, float], **more: Any) -> Record:
    run_id = f"20260301-10{number:02d}00-abc{number:03d}"
    origins = {name: "given" if name == "memory_limit_bytes" else "measured" for name in metrics}
    return Record(
        run_id=run_id,
        stage=stage,
        status=more.pop("status", "ok"),
        started_at=f"2026-03-01T10:{number:02d}:00+00:00",
        wall_seconds=20.0 + number,
        lock_digest=more.pop("lock_digest", LOCK),
        metrics=metrics,
        origins={**origins, **more.pop("origins", {})},
        overrides=["stage=all", "name=tiny on cpu"],
        folder=str(root / "tiny" / stage / run_id),
        **more,
    )


def go_records(root: Path) -> dict[str, Record]:
    """Every stage of this version, all of it good."""
    rng = random.Random(0)
    steps = [0.312 + abs(rng.gauss(0, 0.004)) for _ in range(30)]
    card = [
        "model load", "first batch", "forward", "loss is finite", "backward", "gradients are finite", "optimizer step",
        "loss falls", "evaluation", "checkpoint save", "checkpoint load", "parameters equal", "loss equal after load",
    ]  # fmt: skip
    records = {
        "lock": _record("lock", 1, root, {"num_distributions": 83}, artifacts={"lock": "lock.yaml"}),
        "prove": _record(
            "prove",
            2,
            root,
            {
                "model_load_seconds": 0.41, "first_batch_seconds": 1.9, "first_step_seconds": 0.9,
                "num_params": 3_200_000,
                "first_loss": 5.5432, "last_loss": 5.4121, "eval_loss": 5.4012, "eval_seconds": 0.92,
                "restored_eval_loss": 5.4012, "checkpoint_bytes": 36.7 * MIB, "checkpoint_save_seconds": 0.31,
                "checkpoint_load_seconds": 0.12, "process_start_seconds": 3.4, "restart_seconds": 5.2,
            },
            details={"card": [{"item": item, "verdict": "PASS", "note": ""} for item in card]},
        ),
        "measure": _record(
            "measure",
            3,
            root,
            {
                "peak_allocated_bytes": 1.31 * GIB, "peak_rss_bytes": 1.9 * GIB, "memory_limit_bytes": 4 * GIB,
                "step_seconds": 0.3141, "step_p95_seconds": 0.3221, "step_min_seconds": 0.3120,
                "step_max_seconds": 0.3239,
                "step_spread": 0.011, "num_warmup_steps": 3, "num_measured_steps": 30, "warmup_seconds": 1.61,
                "first_step_seconds": 0.88, "tokens_per_step": 512, "tokens_per_second": 1630,
                "tokens_per_second_per_device": 1630, "data_wait_seconds": 0.0031, "data_wait_p95_seconds": 0.0044,
                "forward_seconds": 0.098, "backward_seconds": 0.187, "optimizer_seconds": 0.021,
                "num_flops_per_token": 19_600_000, "num_params": 3_200_000, "eval_batch_seconds": 0.115,
            },
            details={"steps": steps, "warnings": []},
        ),
        "pilot": _record(
            "pilot",
            4,
            root,
            {
                "world_size": 2, "visible_devices": 2, "idle_devices": 0, "single_tokens_per_second": 1630,
                "single_step_seconds": 0.3141, "single_peak_allocated_bytes": 1.31 * GIB,
                "ddp_first_step_seconds": 1.1, "ddp_tokens_per_second": 2950, "ddp_step_seconds": 0.3471,
                "ddp_step_spread": 0.018, "ddp_peak_allocated_bytes": 1.33 * GIB, "ddp_scaling_efficiency": 0.905,
                "ddp_start_seconds": 4.6, "fsdp_tokens_per_second": 2310, "fsdp_step_seconds": 0.4433,
                "fsdp_step_spread": 0.024, "fsdp_peak_allocated_bytes": 1.12 * GIB, "fsdp_scaling_efficiency": 0.709,
                "fsdp_start_seconds": 5.1,
            },
            details={
                "strategies": {"ddp": {"status": "ok", "note": ""}, "fsdp": {"status": "ok", "note": ""}},
                "recommendation": {"strategy": "ddp", "reason": "It fits on one device, and ddp is 28 % faster."},
            },
        ),
        "restore": _record(
            "restore",
            5,
            root,
            {
                "num_steps": 3, "checkpoint_bytes": 36.7 * MIB, "checkpoint_save_seconds": 0.33,
                "checkpoint_load_seconds": 0.13, "restart_seconds": 5.4, "max_loss_difference": 0.0,
                "uninterrupted_loss": 5.2011, "continued_loss": 5.2011,
            },
            details={
                "comparison": [
                    {"component": name, "verdict": "PASS", "note": "bitwise equal"}
                    for name in ("parameters", "optimizer", "scheduler", "data position", "random state", "losses")
                ]
            },
        ),
    }  # fmt: skip
    return with_plan(records, root)


def with_plan(records: dict[str, Record], root: Path, **choices: Any) -> dict[str, Record]:
    """Add what `budget` and `plan` would make of these records."""
    ledger = build_ledger(
        records,
        num_steps=97_657,
        num_evals=97,
        num_eval_batches=8,
        num_checkpoints=97,
        strategy="ddp",
        world_size=2,
        given=Given(download_seconds=240.0),
    )
    metrics = {
        "total_seconds": ledger.total_seconds,
        "step_total_seconds": ledger.step_total_seconds,
        "goodput": ledger.goodput,
    }
    known = {name: value for name, value in metrics.items() if value is not None}
    origins = dict.fromkeys(known, "projected")
    details: dict[str, Any] = {
        "ledger": ledger.to_details(),
        "interval": {"sentence": "a save every 1000 steps loses 0.2 % of the time"},
        "supply": {"sentence": "input is no limit at any number of nodes"},
        "quality": [
            {
                "stage": "prove",
                "run_id": "r",
                "tokens": 5e5,
                "eval_loss": 5.4,
                "gpu_hours": 0.2,
                "loss_per_gpu_hour": 0.7,
            }
        ],
    }
    budget = _record("budget", 6, root, known, origins=origins, details=details)
    chosen = {"hardware": "cpu", "precision": "fp32", "activation_checkpointing": "none", "strategy": "ddp", **choices}
    every = {**records, "budget": budget}
    question = Question(
        assumptions=Assumptions(FailureModel("typical", 5e-3, 2e-3, 2e-2, 3.0, source="published fleets")),
        reservations={"7d": 7.0, "30d": 30.0},
        prices=Prices(per_gpu_hour={"cpu": 0.04}, as_of="2026-03-01"),
        max_devices=64,
    )
    plan = make_plan([Candidate(CONFIG, every)], question=question)
    words = ["stage=all", "name=tiny on cpu"]
    verdict = decide_verdict(every, reservations=plan.outcomes, overrides=words, **chosen)
    hours = {"gpu_hours": plan.chosen.option.gpu_hours, "num_gpus": 2.0}
    figures = {name: value for name, value in hours.items() if value is not None}
    details = {"verdict": verdict.to_dict(), **plan.to_details()}
    origins = {"gpu_hours": "projected", "num_gpus": "given"}
    every["plan"] = _record("plan", 7, root, figures, origins=origins, details=details)
    return every


def no_go_records(root: Path) -> dict[str, Record]:
    """A step that does not fit, and a pilot whose ranks died; names and tracebacks that try to be markup."""
    records = go_records(root)
    records["measure"].status = "does_not_fit"
    records["measure"].metrics = {
        "memory_limit_bytes": 4 * GIB, "requested_bytes": 0.75 * GIB, "peak_allocated_bytes": 3.62 * GIB,
    }  # fmt: skip
    records["measure"].origins = dict.fromkeys(records["measure"].metrics, "measured")
    records["measure"].details = {}
    records["measure"].problem = Failure(
        "Out of memory in backward of the first step", cause="OutOfMemoryError", rank=0
    )
    records["pilot"].status = "failed"
    records["pilot"].metrics = {"world_size": 2, "visible_devices": 2, "idle_devices": 0}
    records["pilot"].details = {
        "strategies": {
            "ddp": {"status": "failed", "note": f"rank 1 {HOSTILE}"},
            "fsdp": {"status": "timed_out", "note": "longer than 1 h"},
        }
    }
    frame = '  File "/home/user/my_model.py", line {}, in forward\n    x = self.blocks[{}](x)\n'
    records["pilot"].problem = Failure(
        f"rank 1 raised RuntimeError {HOSTILE}",
        cause="RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x128 and 256x512)",
        rank=1,
        traceback="Traceback (most recent call last):\n" + "".join(frame.format(n, n) for n in range(12, 18)) + HOSTILE,
        log="phases/ddp/log.txt",
    )
    return with_plan({name: records[name] for name in ("lock", "prove", "measure", "pilot", "restore")}, root)


def incomplete_records(root: Path) -> dict[str, Record]:
    """No such device here: nothing after the lock could be run."""
    records = {"lock": go_records(root)["lock"]}
    for number, stage in enumerate(("prove", "measure", "pilot"), 2):
        summary = "No device named H100 is visible on this machine"
        records[stage] = _record(stage, number, root, {}, status="refused", problem=Failure(summary))
    return with_plan(records, root, hardware="h100", precision="bf16_mixed", strategy="fsdp")


def sweep_records(root: Path) -> list[Record]:
    """Nine points over micro-batch and seq-len, the largest of which does not fit."""
    points = []
    for number, (batch, length) in enumerate((b, s) for b in (2, 4, 8) for s in (128, 256, 512)):
        metrics: dict[str, float] = {
            "peak_allocated_bytes": (0.5 + batch * length / 1100) * GIB,
            "step_seconds": 0.04 + batch * length / 1650,
            "tokens_per_second": batch * length / (0.04 + batch * length / 1650),
        }
        config = {"train": {"micro_batch_size": batch, "seq_len": length}}
        record = _record("measure", 10 + number, root, metrics, config=config)
        if metrics["peak_allocated_bytes"] > 4 * GIB:
            record.status, record.metrics = "does_not_fit", {}
            record.problem = Failure("Out of memory in forward of the first step")
        points.append(record)
    return points


def verdict_of(records: dict[str, Record]) -> Verdict:
    """The verdict that the record of `plan` holds."""
    return Verdict.from_dict(copy.deepcopy(records["plan"].details["verdict"]))
