"""Save and restore: bitwise continuation, damage, names, the seams of schedule, scaler and data."""

import json
import os
import resource
import shutil

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from pilotkit.train import checkpoint
from pilotkit.train.checkpoint import CheckpointError
from pilotkit.train.tensors import collect_tensors

SGD = {"name": "sgd", "lr": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
ADAM_L2 = {"name": "adam", "lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8, "momentum": 0.0, "weight_decay": 0.1}


def weights_of(trainer):
    return {name: param.detach().clone() for name, param in trainer.model.named_parameters()}


def assert_same_weights(first, second):
    for (name, here), there in zip(weights_of(first).items(), weights_of(second).values(), strict=True):
        assert torch.equal(here, there), name


@pytest.mark.parametrize("scenario", ["continues_ddp", "continues_fsdp", "continues_hsdp"])
def test_ranks_continue_bitwise(scenario, two_ranks):
    for found in two_ranks[scenario]:
        assert found["step"] == 2
        assert found["continued"] == found["uninterrupted"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="adamw"),
        pytest.param({"optimizer": {**SGD, "momentum": 0.9}}, id="sgd momentum"),
        pytest.param({"optimizer": {**SGD, "momentum": 0.0}}, id="sgd without state"),
        pytest.param({"activations": "full"}, id="activation checkpointing"),
        pytest.param({"precision": "BF16"}, id="bf16"),
        pytest.param({"num_workers": 2}, id="loader processes"),
    ],
)
def test_one_process_continues_bitwise(options, workload, tmp_path):
    options = {**options, "precision": getattr(workload, options.get("precision", "FP32"))}
    first = workload.build_trainer(dropout=0.1, grad_accum_steps=2, **options)
    workload.run_steps(first, 2)
    saved = checkpoint.save(first, tmp_path / "step-2", config_text="train: {seed: 5}\n")
    uninterrupted = workload.run_steps(first, 3)
    second = workload.build_trainer(dropout=0.1, grad_accum_steps=2, model_seed=99, **options)
    loaded = checkpoint.load(second, saved.path)
    assert (loaded.step, loaded.world_size, second.tokens_seen) == (2, 1, 2 * 2 * 2 * 16)
    assert workload.run_steps(second, 3) == uninterrupted
    assert_same_weights(first, second)
    first.train_rows.close()
    second.train_rows.close()
    in_folder = sum(path.stat().st_size for path in saved.path.iterdir() if path.name != "manifest.json")
    assert saved.num_bytes == in_folder
    assert json.loads((saved.path / "trainer.json").read_text())["config_text"] == "train: {seed: 5}\n"


def test_sharded_checkpoint_continues_in_one_process(workload, two_ranks):
    rows_of_ranks = two_ranks["continues_fsdp"]
    trainer = workload.build_trainer(grad_accum_steps=4, dropout=0.1)
    loaded = checkpoint.load(trainer, two_ranks.folder / "continues-fsdp")
    assert (loaded.step, loaded.world_size) == (2, 2)
    result = trainer.train_step()
    expected = [rows["continued"]["row_ids"][0] for rows in rows_of_ranks]
    assert sorted(result.row_ids) == sorted(expected[0] + expected[1])


@pytest.mark.parametrize("optimizer", [None, ADAM_L2, {**SGD, "momentum": 0.9}], ids=["adamw", "adam L2", "sgd"])
def test_saving_before_the_first_step_changes_nothing(optimizer, workload, tmp_path):
    options = {} if optimizer is None else {"optimizer": optimizer}
    plain, saved = workload.build_trainer(**options), workload.build_trainer(**options)
    checkpoint.save(saved, tmp_path / "step-0", config_text="")
    for state in saved.optimizer.state.values():
        assert all(not value.any() for value in state.values()), "step counter and moments begin at zero"
    restored = workload.build_trainer(model_seed=99, **options)
    checkpoint.load(restored, tmp_path / "step-0")
    expected = workload.run_steps(plain, 5)
    assert workload.run_steps(saved, 5) == expected
    assert workload.run_steps(restored, 5) == expected
    assert_same_weights(plain, saved)
    assert_same_weights(plain, restored)


@pytest.mark.parametrize("saved_at", range(6))
def test_learning_rate_has_no_seam(saved_at, workload, tmp_path):
    """Case R70: none is taken twice and none left out, wherever it was saved."""
    plain = workload.build_trainer()
    expected = [(result.step, result.lr) for result in (plain.train_step() for _ in range(6))]
    first = workload.build_trainer()
    found = [(result.step, result.lr) for result in (first.train_step() for _ in range(saved_at))]
    checkpoint.save(first, tmp_path / "c", config_text="")
    second = workload.build_trainer()
    checkpoint.load(second, tmp_path / "c")
    found += [(result.step, result.lr) for result in (second.train_step() for _ in range(6 - saved_at))]
    assert found == expected
    assert [step for step, _ in found] == [1, 2, 3, 4, 5, 6]
    # Warm-up over 3 steps to 0.01, then cosine over the 17 that are left; steps 4 and 5 by hand.
    assert [lr for _, lr in found[:4]] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.01])
    assert found[4][1] == pytest.approx(0.001 + 0.009 * 0.5 * (1 + 0.98297309968))  # cos(pi / 17)


def test_loss_scale_comes_back_before_the_first_step(workload, tmp_path):
    first = workload.build_trainer(precision=workload.FP16_MIXED)
    first.train_step()
    first.scaler.load_state_dict({**first.scaler.state_dict(), "scale": 256.0, "_growth_tracker": 7})
    first.num_skipped_steps = 3
    checkpoint.save(first, tmp_path / "step-1", config_text="")
    second = workload.build_trainer(precision=workload.FP16_MIXED)
    checkpoint.load(second, tmp_path / "step-1")
    state = second.scaler.state_dict()
    assert (state["scale"], state["_growth_tracker"], second.num_skipped_steps) == (256.0, 7, 3)
    assert second.train_step() == first.train_step()
    assert second.scaler.get_scale() == 256.0


def test_checkpoint_without_loss_scale_is_refused_by_one_that_has(workload, tmp_path):
    checkpoint.save(workload.build_trainer(), tmp_path / "c", config_text="")
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(workload.build_trainer(precision=workload.FP16_MIXED), tmp_path / "c")
    assert str(caught.value) == (
        f"{tmp_path / 'c'}: does not fit this run\nthis run has a loss scale, the checkpoint has none: precision"
    )


@pytest.fixture(scope="module")
def intact(workload, tmp_path_factory):
    trainer = workload.build_trainer()
    trainer.train_step()
    return checkpoint.save(trainer, tmp_path_factory.mktemp("intact") / "c", config_text="").path


@pytest.fixture
def damaged(intact, tmp_path):
    return shutil.copytree(intact, tmp_path / "c")


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


FILES = ["__0_0.distcp", ".metadata", "trainer.json", "random-0.pt"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (flip_a_bit, "its content changed since it was written (sha256 differs)"),
        (truncate, "{less} bytes, written with {size}"),
        (os.unlink, "No such file or directory"),
    ],
    ids=["flipped bit", "one byte short", "missing"],
)
def test_damage_is_found_and_named(name, harm, words, workload, damaged):
    size = (damaged / name).stat().st_size
    harm(damaged / name)
    trainer = workload.build_trainer()
    before = weights_of(trainer)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(trainer, damaged)
    assert str(caught.value) == f"{damaged / name}: {words.format(less=size - 1, size=size)}"
    assert all(torch.equal(before[key], value) for key, value in weights_of(trainer).items())


def test_folder_without_manifest_is_no_checkpoint(workload, damaged):
    (damaged / "manifest.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(workload.build_trainer(), damaged)
    expected = f"{damaged}/manifest.json: missing, so this is not a checkpoint or its save was cut short"
    assert str(caught.value) == expected


def test_names_that_only_one_side_has_are_listed(workload, intact):
    model = workload.build_model()
    model.extra = torch.nn.Parameter(torch.zeros(2))
    model.norm.weight = torch.nn.Parameter(torch.zeros(3))
    del model.norm.bias
    model.norm.bias = None
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(workload.build_trainer(model=model), intact)
    assert str(caught.value).splitlines() == [
        f"{intact}: does not fit this run",
        "saved but not known to this run: model.norm.bias",
        "saved but not known to this run: optimizer.norm.bias.exp_avg",
        "saved but not known to this run: optimizer.norm.bias.exp_avg_sq",
        "saved but not known to this run: optimizer.norm.bias.step",
        "needed by this run but not saved: model.extra",
        "needed by this run but not saved: optimizer.extra.exp_avg",
        "needed by this run but not saved: optimizer.extra.exp_avg_sq",
        "needed by this run but not saved: optimizer.extra.step",
        "saved as (16,) torch.float32, here (3,) torch.float32: model.norm.weight",
        "saved as (16,) torch.float32, here (3,) torch.float32: optimizer.norm.weight.exp_avg",
        "saved as (16,) torch.float32, here (3,) torch.float32: optimizer.norm.weight.exp_avg_sq",
    ]


def test_another_order_of_rows_is_refused(workload, intact):
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(workload.build_trainer(seed=6, num_rows=81), intact)
    assert str(caught.value) == (
        f"{intact}: belongs to another run (train.seed=6, saved with 5; data=81 rows, saved with 80 rows)"
    )


def test_names_are_those_of_the_plain_model(workload, intact, two_ranks):
    expected = set(FileSystemReader(intact).read_metadata().state_dict_metadata)
    assert "model.blocks.0.mlp.up.weight" in expected
    assert "optimizer.blocks.0.mlp.up.weight.exp_avg" in expected
    for name in ("continues-ddp", "continues-fsdp", "continues-hsdp"):  # fsdp also has activation checkpointing
        assert set(FileSystemReader(two_ranks.folder / name).read_metadata().state_dict_metadata) == expected
    compiled = workload.build_trainer(wrap=lambda model: torch.compile(model, backend="eager"), activations="full")
    assert set(collect_tensors(compiled.model, compiled.optimizer)) == expected
    checkpoint.load(compiled, intact)


def test_nothing_is_written_over_a_checkpoint(workload, intact):
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(workload.build_trainer(), intact, config_text="")
    assert str(caught.value) == f"{intact}: exists already; a checkpoint is never written over another"


def test_what_a_killed_save_left_is_no_checkpoint_and_no_hindrance(workload, tmp_path):
    part = tmp_path / ".c.part"
    part.mkdir()
    (part / "__0_0.distcp").write_bytes(b"half")
    (part / "__9_0.distcp").write_bytes(b"of a larger run")
    saved = checkpoint.save(workload.build_trainer(), tmp_path / "c", config_text="")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]
    assert not (saved.path / "__9_0.distcp").exists()


def test_a_disk_that_refuses_is_explained(workload, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(workload.build_trainer(), tmp_path / "file" / "c", config_text="")
    assert str(caught.value) == f"{tmp_path / 'file' / 'c'}: cannot be saved: Not a directory"


def test_a_disk_that_is_full_names_the_rank(workload, tmp_path):
    trainer = workload.build_trainer()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(CheckpointError) as caught:
            checkpoint.save(trainer, tmp_path / "c", config_text="")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(caught.value) == f"{tmp_path / 'c'}: cannot be saved: rank 0: [Errno 27] File too large"
    assert not (tmp_path / "c").exists()
    checkpoint.save(trainer, tmp_path / "c", config_text="")


def test_nothing_is_unpickled_without_weights_only(workload, intact, monkeypatch):
    seen = []
    original = torch.load

    def watched(*args, **kwargs):
        seen.append(kwargs.get("weights_only"))
        return original(*args, **kwargs)

    monkeypatch.setattr(torch, "load", watched)
    checkpoint.load(workload.build_trainer(), intact)
    assert seen
    assert set(seen) == {True}
