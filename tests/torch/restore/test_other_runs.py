"""A checkpoint in a run that is not quite its own: other frozen parameters, another dtype, a disk that went away."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pilotkit.records.checkpoint_check import check
from pilotkit.records.checkpoint_store import CheckpointStore
from pilotkit.records.digests import DigestedStream
from pilotkit.train import checkpoint, fingerprint
from pilotkit.train.async_save import AsyncSaver
from pilotkit.train.checkpoint import CheckpointError
from pilotkit.train.store import load_newest, save_step, save_step_async

SGD = {"name": "sgd", "lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "momentum": 0.0, "weight_decay": 0.0}


def partly_frozen(workload, *names, **options):
    """A trainer whose parameters below `names` are not trained."""
    model = workload.build_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(names))
    return workload.build_trainer(model=model, **options)


@pytest.mark.parametrize("options", [{}, {"optimizer": SGD}], ids=["adamw", "an optimizer without state"])
def test_the_same_frozen_set_comes_back_and_another_is_refused_by_name(options, workload, tmp_path):
    trainer = partly_frozen(workload, "blocks.0", **options)
    trainer.train_step()
    saved = checkpoint.save(trainer, tmp_path / "c", config_text="")
    same = partly_frozen(workload, "blocks.0", **options)
    checkpoint.load(same, saved.path)
    assert fingerprint.of_rank(same) == fingerprint.of_rank(trainer)
    one, other = trainer.train_step(), same.train_step()
    assert (one.loss, one.grad_norm) == (other.loss, other.grad_norm)
    more = partly_frozen(workload, "blocks.0.mlp", "blocks.0.mlp_norm", **options)
    before = fingerprint.of_rank(more)
    with pytest.raises(CheckpointError, match=r"blocks\.0\.attention\.qkv\.weight") as caught:
        checkpoint.load(more, saved.path)
    assert "blocks.0.mlp.up.weight" not in str(caught.value)
    assert "blocks.1" not in str(caught.value)
    assert fingerprint.of_rank(more) == before, "nothing is restored of what is refused"
    with pytest.raises(CheckpointError, match=r"blocks\.1\.mlp\.up\.weight"):
        checkpoint.load(partly_frozen(workload, "blocks", **options), saved.path)


def test_another_dtype_is_refused_with_the_names_unless_it_is_asked_for(workload, tmp_path):
    trainer = workload.build_trainer()
    trainer.train_step()
    saved = checkpoint.save(trainer, tmp_path / "c", config_text="")
    narrow = workload.build_trainer(precision=workload.BF16)
    with pytest.raises(CheckpointError, match=r"float32, here .* torch\.bfloat16: model\.blocks\.0\.mlp\.up\.weight"):
        checkpoint.load(narrow, saved.path)
    checkpoint.load(narrow, saved.path, allow_dtype_change=True)
    weights = dict(narrow.model.named_parameters())
    for name, parameter in trainer.model.named_parameters():
        assert weights[name].dtype == torch.bfloat16
        assert torch.equal(weights[name], parameter.bfloat16()), name


@pytest.fixture
def one_rank(tmp_path):
    """A process group of one, for DDP."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "group"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def parallel(model):
    return DistributedDataParallel(model)


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize(
    "wrap",
    [lambda model: compiled(parallel(model)), lambda model: parallel(compiled(model))],
    ids=["compiled outside", "compiled inside"],
)
def test_whatever_is_wrapped_around_the_model_both_ways_fit(wrap, one_rank, workload, tmp_path):
    """Case R79: compiled and DDP in both orders, to a plain model and back; every name is there and no other."""
    wrapped, plain = workload.build_trainer(wrap=wrap), workload.build_trainer(model_seed=99)
    prefixes = {name.rpartition("token_embedding")[0] for name, _ in wrapped.model.named_parameters()} - {""}
    assert prefixes in ({"_orig_mod.module."}, {"module._orig_mod."})
    wrapped.train_step()
    saved = checkpoint.save(wrapped, tmp_path / "wrapped", config_text="")
    checkpoint.load(plain, saved.path)
    assert fingerprint.of_rank(plain) == fingerprint.of_rank(wrapped)
    plain.train_step()
    saved = checkpoint.save(plain, tmp_path / "plain", config_text="")
    other = workload.build_trainer(model_seed=98, wrap=wrap)
    checkpoint.load(other, saved.path)
    assert fingerprint.of_rank(other) == fingerprint.of_rank(plain)


def test_a_checkpoint_from_before_the_lock_was_kept_still_loads(faults, workload, tmp_path):
    import json

    trainer = workload.build_trainer()
    trainer.train_step()
    saved = checkpoint.save(trainer, tmp_path / "c", config_text="", lock_text="locked")
    seen = []
    checkpoint.load(workload.build_trainer(), saved.path, accept_lock=seen.append)
    scalars = json.loads((saved.path / "trainer.json").read_text())
    del scalars["lock_text"], scalars["frozen"]
    (saved.path / "trainer.json").write_text(json.dumps(scalars))
    faults.reseal(saved.path)
    checkpoint.load(workload.build_trainer(), saved.path, accept_lock=seen.append)
    assert seen == ["locked", ""]


@pytest.fixture
def mounted(tmp_path):
    """A disk of its own, and a function that takes it away at once and brings it back as it was."""
    image, folder = tmp_path / "disk", tmp_path / "mounted"
    image.mkdir()
    folder.mkdir()

    def mount():
        return subprocess.run(["mount", "--bind", image, folder], capture_output=True, text=True, check=False)

    first = mount()
    if first.returncode:
        pytest.skip(f"NOT TESTED, a disk that vanishes needs leave to mount: {first.stderr.strip()}")
    yield folder, lambda: subprocess.run(["umount", "--lazy", folder], check=True), mount
    subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)


def test_a_disk_that_vanishes_in_a_save_costs_only_that_save(mounted, monkeypatch, workload):
    folder, unmount, mount = mounted
    store = CheckpointStore(folder / "checkpoints")
    trainer = workload.build_trainer()
    trainer.train_step()
    save_step(store, trainer, config_text="")
    expected = fingerprint.of_rank(trainer)
    trainer.train_step()
    write, gone = DigestedStream.write, []

    def vanishes(self, data):
        if not gone:
            gone.append(unmount())
        return write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(DigestedStream, "write", vanishes)
        with pytest.raises(CheckpointError, match=r"step-0000000002: cannot be saved"):
            save_step(store, trainer, config_text="")
    assert gone
    assert store.whole() == []
    # What is there without the disk must not be taken for a first start in the same folder.
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    assert mount().returncode == 0
    assert store.latest() == store.path_of(1)
    (partial,) = store.partials()
    assert "step-0000000002" in partial.path.name
    restored = workload.build_trainer()
    assert load_newest(store, restored).step == 1
    assert fingerprint.of_rank(restored) == expected
    # The process that left it lives, and may save that step again: then it is cleaned up.
    saver = AsyncSaver()
    save_step_async(store, trainer, saver=saver, config_text="").result()
    saver.close()
    assert store.partials() == []
    assert [check(path).is_sound for path in store.whole()] == [True, True]
