"""Phases of `restore` for other shapes: save in every shape of one world size; load at another whatever was saved.

Named `<phase>@<world size>`: one start of that many ranks goes through all of its shapes one after the other. The state
is fingerprinted whole, tensor by tensor, as a shard says nothing to another shape.
"""

from __future__ import annotations

from typing import Any

import torch

from pilotkit.config.load import dump
from pilotkit.config.shapes import Shape, common_ranks, rows_per_step, shape_pairs
from pilotkit.train import checkpoint, fingerprint
from pilotkit.worker.build import Built
from pilotkit.worker.phases.restore import build_for, load_checked, lock_text, run_steps
from pilotkit.worker.session import Session


def save_shapes(session: Session) -> dict[str, Any]:
    """k steps, save, and on without a stop: what every restore of that checkpoint is compared with."""
    pairs = shape_pairs(session.config)
    shapes = sorted({pair.saved for pair in pairs if pair.saved.world_size == session.world_size})
    found = {}
    for shape in shapes:
        built = _build(session, shape)
        run_steps(session, built, num_steps=session.config.restore.num_steps, label=f"before the save, {shape}")
        path = session.run_dir.checkpoints / str(shape)
        saved = checkpoint.save(built.trainer, path, config_text=dump(session.config), lock_text=lock_text(session))
        found[str(shape)] = {
            "checkpoint_bytes": saved.num_bytes,
            "checkpoint_save_seconds": saved.seconds,
            **_observe(session, built),
        }
    return {"shapes": found}


def load_shapes(session: Session) -> dict[str, Any]:
    """Load each checkpoint that some pair restores here, look, and take the other k steps."""
    pairs = [pair for pair in shape_pairs(session.config) if pair.restored.world_size == session.world_size]
    found = {}
    for pair in pairs:
        path = session.run_dir.checkpoints / str(pair.saved)
        if not path.exists():
            continue  # more ranks than this machine has devices; the driver misses the pair and says so
        built = _build(session, pair.restored)
        loaded = load_checked(session, built, path)
        found[str(pair)] = {"checkpoint_load_seconds": loaded.seconds, **_observe(session, built)}
    return {"pairs": found}


def _build(session: Session, shape: Shape) -> Built:
    """As many accumulated micro-batches as make the same rows a step in every shape."""
    per_pass = session.config.train.micro_batch_size * shape.world_size
    return build_for(session, strategy=shape.strategy, grad_accum_steps=rows_per_step(session.config) // per_pass)


def _observe(session: Session, built: Built) -> dict[str, Any]:
    """The state, its evaluation on the same rows for every world size, and the next k steps."""
    trainer = built.trainer
    state = fingerprint.of_whole(trainer)
    num_batches = session.config.train.num_eval_batches * common_ranks(session.config) // session.world_size
    eval_loss = trainer.evaluate(num_batches)
    generator = torch.get_rng_state()
    steps = run_steps(session, built, num_steps=session.config.restore.num_steps, label="after")
    draws = not torch.equal(generator, torch.get_rng_state())
    built.close()
    rows = [_in_order(step["row_ids"], session.config.train.micro_batch_size) for step in steps]
    return {
        "state": state,
        "eval_loss": eval_loss,
        "losses": [step["loss"] for step in steps],
        "lrs": [step["lr"] for step in steps],
        "row_ids": rows,
        # Ranks draw from streams of their own: with dropout, another number of ranks is another run.
        "draws_random": any(session.gather(draws)),
    }


def _in_order(rows_of_ranks: list[list[int]], micro_batch_size: int) -> list[int]:
    """The rows of one step in the order of the run: micro-batch by micro-batch, in each of them rank by rank."""
    num_passes = len(rows_of_ranks[0]) // micro_batch_size
    passes = [slice(index * micro_batch_size, (index + 1) * micro_batch_size) for index in range(num_passes)]
    return [row for one in passes for rows in rows_of_ranks for row in rows[one]]
