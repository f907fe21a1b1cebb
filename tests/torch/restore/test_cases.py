"""What real users lost in a restore: gradients, bits of moments, rows of an epoch, a scalar, a learning rate."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from pilotkit.train import checkpoint, fingerprint
from pilotkit.train.async_save import AsyncSaver
from pilotkit.train.checkpoint import CheckpointError


@pytest.fixture(scope="module")
def intact(workload, tmp_path_factory):
    trainer = workload.build_trainer()
    trainer.train_step()
    return checkpoint.save(trainer, tmp_path_factory.mktemp("intact") / "c", config_text="").path


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_save_in_the_middle_of_accumulation_is_refused(num_steps, workload, tmp_path):
    """Cases R70 and pytorch#140898: gradients are not saved, and a fresh optimizer would be saved without its state."""
    trainer = workload.build_trainer(grad_accum_steps=2)
    workload.run_steps(trainer, num_steps)
    batch = trainer.train_rows.next().tensors
    trainer.model(**batch).loss.backward()
    for save in (checkpoint.save, AsyncSaver().save):
        with pytest.raises(CheckpointError, match=r"in the middle of a step: 28 parameters have gradients"):
            save(trainer, tmp_path / "c", config_text="")
    assert list(tmp_path.iterdir()) == []
    trainer.optimizer.zero_grad()
    checkpoint.save(trainer, tmp_path / "c", config_text="")
    checkpoint.load(workload.build_trainer(grad_accum_steps=2), tmp_path / "c")


def moments(trainer):
    return [value for states in trainer.optimizer.state.values() for name, value in states.items() if name != "step"]


def test_moments_of_more_bits_than_their_parameter_keep_them(workload, tmp_path):
    """Case R74, pytorch#43706: `Optimizer.load_state_dict` casts them to the dtype of the parameter."""

    def build(seed):
        trainer = workload.build_trainer(precision=workload.BF16)
        trainer.train_step()
        generator = torch.Generator().manual_seed(seed)
        for states in trainer.optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                states[name] = torch.rand(states[name].shape, generator=generator)
        return trainer

    first, second = build(1), build(2)
    checkpoint.save(first, tmp_path / "c", config_text="")
    checkpoint.load(second, tmp_path / "c")
    restored = second.optimizer.state.values()
    assert {states["exp_avg_sq"].dtype for states in restored} == {torch.float32}
    assert any(not torch.equal(one["exp_avg"], one["exp_avg"].bfloat16().float()) for one in restored)
    assert fingerprint.of_rank(second) == fingerprint.of_rank(first)
    narrow = workload.build_trainer(precision=workload.BF16)
    with pytest.raises(CheckpointError, match=r"torch\.float32, here .* torch\.bfloat16: optimizer\..*exp_avg"):
        checkpoint.load(narrow, tmp_path / "c")
    checkpoint.load(narrow, tmp_path / "c", allow_dtype_change=True)
    assert {states["exp_avg"].dtype for states in narrow.optimizer.state.values()} == {torch.bfloat16}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_after_a_restore_in_the_middle_of_an_epoch(num_workers, workload, tmp_path):
    """Case R72: 40 rows in batches of 4, shuffled, saved after step 6 of 10."""
    options = {"num_rows": 40, "grad_accum_steps": 2, "num_workers": num_workers}
    plain = workload.build_trainer(**options)
    expected = workload.run_steps(plain, 14)["row_ids"]
    epoch = [row for step in expected[:10] for row in step]
    assert sorted(epoch) == list(range(40)), "each once"
    assert epoch != list(range(40))
    first = workload.build_trainer(**options)
    workload.run_steps(first, 6)
    checkpoint.save(first, tmp_path / "c", config_text="")
    second = workload.build_trainer(**options)
    checkpoint.load(second, tmp_path / "c")
    assert workload.run_steps(second, 8)["row_ids"] == expected[6:]  # into the second epoch
    for trainer in (plain, first, second):
        trainer.train_rows.close()


def test_a_scalar_that_this_version_does_not_know_is_refused_by_name(faults, workload, intact, tmp_path):
    """Case R66: what was saved and is not loaded is told, and nothing is restored."""
    copy = shutil.copytree(intact, tmp_path / "c")
    scalars = {**json.loads((copy / "trainer.json").read_text()), "ema_decay": 0.5}
    (copy / "trainer.json").write_text(json.dumps(scalars))
    faults.reseal(copy)
    trainer = workload.build_trainer(model_seed=99)
    before = fingerprint.of_rank(trainer)
    with pytest.raises(CheckpointError, match="saved but not known to this run: ema_decay"):
        checkpoint.load(trainer, copy)
    assert fingerprint.of_rank(trainer) == before


def test_the_learning_rate_at_the_start_is_kept_with_its_group(workload, intact):
    """pytorch#140900: DCP's helper lost it, and a scheduler that is made anew begins with it."""
    trainer = workload.build_trainer()
    for group in trainer.optimizer.param_groups:
        group["initial_lr"] = 7.0
    checkpoint.load(trainer, intact)
    assert [group["initial_lr"] for group in trainer.optimizer.param_groups] == [0.01]
