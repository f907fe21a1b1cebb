"""What the tiny workload does on several ranks. Tests of one process import a scenario to compare with it.

Run as `python rank_scenarios.py OUT RANK WORLD_SIZE` by the `two_ranks` fixture: every rank goes through all scenarios
in one process and leaves OUT/<rank>.json, so that torch is imported once a rank.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pilotkit.errors import ConfigError
from pilotkit.meter import DtypeWatch
from pilotkit.train import checkpoint
from pilotkit.train.ranks import rank_and_world_size
from pilotkit.train.tensors import collect_tensors
from pilotkit.train.trainer import NonFiniteLoss, Trainer
from tests.torch.train.routed import Loss, Routed
from tests.torch.train.workload import (
    BF16_MIXED,
    FP16_MIXED,
    build_model,
    build_trainer,
    frozen_model,
    run_steps,
)


def _same_losses(out: Path, *, strategy: str, grad_accum_steps: int, **options: Any) -> dict[str, Any]:
    # Another seed on every rank: the weights have to be rank 0's all the same.
    rank, _ = rank_and_world_size()
    trainer = build_trainer(strategy=strategy, model_seed=rank, grad_accum_steps=grad_accum_steps, **options)
    found = run_steps(trainer, 10)
    state = collect_tensors(trainer.model, trainer.optimizer)
    embedding, head = (
        getattr(tensor, "full_tensor", lambda tensor=tensor: tensor)()
        for tensor in (state["model.token_embedding.weight"], state["model.lm_head.weight"])
    )
    num_params = sum(param.numel() for param in trainer.model.parameters())
    return {
        **found,
        "tied": bool(torch.equal(embedding, head)),
        "num_params": num_params,
        "eval_loss": trainer.evaluate(2),
        "after_eval": run_steps(trainer, 1)["losses"],
    }


def _continues(out: Path, *, strategy: str, **options: Any) -> dict[str, Any]:
    build = {"strategy": strategy, "grad_accum_steps": 2, "dropout": 0.1, **options}
    first = build_trainer(**build)
    run_steps(first, 2)
    saved = checkpoint.save(first, out / f"continues-{strategy}", config_text="seed: 5")
    uninterrupted = run_steps(first, 3)
    second = build_trainer(model_seed=99, **build)
    loaded = checkpoint.load(second, saved.path)
    return {"step": loaded.step, "uninterrupted": uninterrupted, "continued": run_steps(second, 3)}


def _overflow_on_one_shard(out: Path) -> dict[str, Any]:
    model = build_model()
    model.one_row = torch.nn.Parameter(torch.ones(1, 16))
    model.register_forward_hook(lambda module, _, out: out._replace(loss=out.loss + module.one_row.square().mean()))
    trainer = build_trainer(strategy="fsdp", precision=FP16_MIXED, model=model)
    weights = trainer.model.token_embedding.weight
    before = weights.to_local().clone()

    def spoil(param: Any) -> None:
        if dist.get_rank() == 0:
            param.grad.to_local().fill_(float("inf"))

    handle = weights.register_post_accumulate_grad_hook(spoil)
    skipped = trainer.train_step()
    handle.remove()
    unchanged = bool(torch.equal(before, weights.to_local()))
    following = trainer.train_step()
    return {
        "skipped": [skipped.skipped, following.skipped],
        "lrs": [skipped.lr, following.lr],
        "scale": trainer.scaler.get_scale(),
        "unchanged": unchanged,
        "num_skipped_steps": trainer.num_skipped_steps,
        "rows_of_one_row": trainer.model.one_row.to_local().shape[0],
    }


def _nan_on_rank_1(out: Path, *, strategy: str, only_gradient: bool = False) -> dict[str, Any]:
    model = build_model()
    trainer = build_trainer(strategy=strategy, model=model)
    run_steps(trainer, 2)
    if dist.get_rank() == 1:
        if only_gradient:
            model.norm.bias.register_hook(lambda grad: grad * float("inf"))
        else:
            model.register_forward_hook(lambda module, args, output: output._replace(loss=output.loss * float("nan")))
    try:
        trainer.train_step()
    except NonFiniteLoss as error:
        return {"message": str(error), "step": error.step, "rank": error.rank}
    return {"message": "nothing was raised"}


def _unused_parameter(out: Path, *, used_in_odd_steps: bool = False, search: bool = False) -> dict[str, Any]:
    model = build_model()
    model.unused_head = torch.nn.Linear(16, 2, bias=False)
    model.frozen = torch.nn.Linear(16, 2).requires_grad_(False)
    calls: list[int] = []

    def use(module: Any, _: Any, output: Any) -> Any:
        calls.append(1)
        used = used_in_odd_steps and len(calls) % 2 == 1
        return output._replace(loss=output.loss + module.unused_head.weight.square().mean()) if used else output

    model.register_forward_hook(use)
    trainer = build_trainer(strategy="ddp", model=model, find_unused_parameters=search)
    try:
        run_steps(trainer, 4)
    except ConfigError as error:
        return {"message": str(error)}
    return {"message": "nothing was raised"}


class Normed(torch.nn.Module):
    """A layer, a batch norm, and a buffer of its author's own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.ones(8))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        hidden = self.norm(self.linear(input_ids[:, :8].to(self.linear.weight.dtype))) * self.mask
        return Loss(hidden.float().square().mean())


def _dtypes(out: Path, *, strategy: str) -> dict[str, Any]:
    trainer = build_trainer(strategy=strategy, precision=BF16_MIXED, model=Normed())
    with DtypeWatch(trainer.model) as watch:
        trainer.train_step()
    return asdict(watch.table)


def _statistics(out: Path, *, strategy: str) -> dict[str, Any]:
    """Each rank's running statistics are of its own rows: are they one thing, and do they come back?"""

    def build() -> Trainer:
        return build_trainer(strategy=strategy, model=Normed())

    def statistics(trainer: Trainer) -> list[list[float]]:
        return [buffer.tolist() for name, buffer in trainer.model.named_buffers() if "running" in name]

    first = build()
    run_steps(first, 2)
    saved = checkpoint.save(first, out / f"statistics-{strategy}", config_text="seed: 5")
    second = build()
    checkpoint.load(second, saved.path)
    return {
        "statistics": statistics(first),
        "restored": statistics(second),
        "eval_loss": [first.evaluate(2), second.evaluate(2)],
        "losses": [run_steps(first, 2)["losses"], run_steps(second, 2)["losses"]],
        "at_end": [statistics(first), statistics(second)],
    }


def _bf16_under_fsdp(out: Path) -> dict[str, Any]:
    seen: list[str] = []
    model = build_model()
    trainer = build_trainer(strategy="fsdp", model=model, precision=BF16_MIXED, activations="selective")
    model.blocks[0].mlp.up.register_forward_hook(lambda module, args, output: seen.append(str(output.dtype)))
    found = run_steps(trainer, 2)
    return {**found, "compute": seen[0], "param": str(next(model.parameters()).dtype)}


def routed(out: Path, *, accumulated: int = 1, model: dict[str, bool] | None = None, **options: Any) -> dict[str, Any]:
    try:
        trainer = build_trainer(model=Routed(**(model or {})), grad_accum_steps=accumulated, **options)
        found = run_steps(trainer, 5)
    except ConfigError as error:
        return {"message": str(error)}
    [never] = [param for name, param in trainer.model.named_parameters() if name.endswith("never.weight")]
    decayed = not torch.equal(_whole(never), Routed().never.weight)
    return {**found, "message": "nothing was raised", "decayed": decayed}


def _whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _frozen(out: Path, *, strategy: str) -> dict[str, Any]:
    """Half of the model stands still, the tied embedding with it; what is clipped is the norm of the rest."""
    return run_steps(build_trainer(strategy=strategy, model=frozen_model(), grad_accum_steps=2), 5)


def _used_in_the_first_micro_batch(out: Path) -> dict[str, Any]:
    """DDP reduces in the last backward, which never reaches the head: its gradients would stay each rank's own."""
    model, calls = build_model(), []
    model.early_head = torch.nn.Linear(16, 2, bias=False)

    def use(module: Any, _: Any, output: Any) -> Any:
        calls.append(1)
        if len(calls) % 2 == 0:
            return output
        return output._replace(loss=output.loss + module.early_head.weight.square().mean())

    model.register_forward_hook(use)
    try:
        run_steps(build_trainer(strategy="ddp", model=model, grad_accum_steps=2), 2)
    except ConfigError as error:
        return {"message": str(error)}
    return {"message": "nothing was raised"}


def _never_used(out: Path) -> dict[str, Any]:
    """Left alone by the plain loop; with several micro-batches in mixed precision torch has gradients of two dtypes."""
    model = build_model()
    model.unused_head = torch.nn.Linear(16, 2, bias=False)
    before = model.unused_head.weight.detach().clone()
    trainer = build_trainer(strategy="fsdp", model=model, grad_accum_steps=2, precision=BF16_MIXED)
    return {**run_steps(trainer, 3), "decayed": not torch.equal(_whole(model.unused_head.weight), before)}


def _scalar(out: Path) -> dict[str, Any]:
    model = build_model()
    model.temperature = torch.nn.Parameter(torch.tensor(1.0))
    try:
        build_trainer(strategy="fsdp", model=model)
    except ConfigError as error:
        return {"message": str(error)}
    return {"message": "nothing was raised"}


SCENARIOS = {
    "ddp": lambda out: _same_losses(out, strategy="ddp", grad_accum_steps=1),
    "ddp_accumulated": lambda out: _same_losses(out, strategy="ddp", grad_accum_steps=2),
    "ddp_reduces_each": lambda out: _same_losses(out, strategy="ddp", grad_accum_steps=2, sync_each_micro_batch=True),
    "fsdp": lambda out: _same_losses(out, strategy="fsdp", grad_accum_steps=1),
    "fsdp_reduces_each": lambda out: _same_losses(out, strategy="fsdp", grad_accum_steps=2, sync_each_micro_batch=True),
    "fsdp_accumulated": lambda out: _same_losses(out, strategy="fsdp", grad_accum_steps=2, activations="full"),
    "hsdp": lambda out: _same_losses(out, strategy="hsdp", grad_accum_steps=1, dp_replicate=2),
    "continues_ddp": lambda out: _continues(out, strategy="ddp"),
    "continues_fsdp": lambda out: _continues(out, strategy="fsdp", activations="full"),
    "continues_hsdp": lambda out: _continues(out, strategy="hsdp", dp_replicate=1),
    "overflow": _overflow_on_one_shard,
    "nan_ddp": lambda out: _nan_on_rank_1(out, strategy="ddp"),
    "inf_gradient_ddp": lambda out: _nan_on_rank_1(out, strategy="ddp", only_gradient=True),
    "nan_fsdp": lambda out: _nan_on_rank_1(out, strategy="fsdp"),
    "unused": _unused_parameter,
    "unused_in_even_steps": lambda out: _unused_parameter(out, used_in_odd_steps=True),
    "unused_and_searched_for": lambda out: _unused_parameter(out, used_in_odd_steps=True, search=True),
    "dtypes_ddp": lambda out: _dtypes(out, strategy="ddp"),
    "dtypes_fsdp": lambda out: _dtypes(out, strategy="fsdp"),
    "statistics_ddp": lambda out: _statistics(out, strategy="ddp"),
    "statistics_fsdp": lambda out: _statistics(out, strategy="fsdp"),
    "bf16_fsdp": _bf16_under_fsdp,
    "frozen_ddp": lambda out: _frozen(out, strategy="ddp"),
    "frozen_fsdp": lambda out: _frozen(out, strategy="fsdp"),
    "routed_fsdp": lambda out: routed(out, strategy="fsdp"),
    "routed_fsdp_searched": lambda out: routed(out, strategy="fsdp", accumulated=2, find_unused_parameters=True),
    "routed_hsdp_searched": lambda out: routed(out, strategy="hsdp", dp_replicate=2, find_unused_parameters=True),
    "routed_ddp_searched": lambda out: routed(out, strategy="ddp", accumulated=2, find_unused_parameters=True),
    "routed_fsdp_mixed": lambda out: routed(
        out, strategy="fsdp", accumulated=2, precision=BF16_MIXED, find_unused_parameters=True
    ),
    "objects_fsdp_searched": lambda out: routed(
        out, strategy="fsdp", accumulated=2, model={"objects": True}, find_unused_parameters=True
    ),
    "objects_ddp_searched": lambda out: routed(
        out, strategy="ddp", accumulated=2, model={"objects": True}, find_unused_parameters=True
    ),
    "never_used": _never_used,
    "experts_are_blocks": lambda out: routed(out, strategy="fsdp", model={"experts_are_blocks": True}),
    "upcast": lambda out: routed(
        out, strategy="fsdp", model={"upcast": True}, precision=BF16_MIXED, find_unused_parameters=True
    ),
    "own_dtype": lambda out: routed(
        out, strategy="fsdp", model={"own_dtype": True}, precision=BF16_MIXED, find_unused_parameters=True
    ),
    "upcast_ddp": lambda out: routed(
        out, strategy="ddp", model={"upcast": True}, precision=BF16_MIXED, find_unused_parameters=True
    ),
    "used_in_the_first_micro_batch": _used_in_the_first_micro_batch,
    "scalar": _scalar,
}


def main(out: Path, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(out / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=20))
    found: dict[str, Any] = {}
    for name, scenario in SCENARIOS.items():
        try:
            found[name] = scenario(out)
        except Exception:
            found[name] = {"traceback": traceback.format_exc()}
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
