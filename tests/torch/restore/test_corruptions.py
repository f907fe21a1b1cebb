"""Corruptions of a real checkpoint: every one is found and named, without torch, and nothing is executed."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pilotkit
from pilotkit.records import checkpoint_store, manifest
from pilotkit.records.checkpoint_check import check, check_store, newest_sound
from pilotkit.records.checkpoint_store import CheckpointStore, Retention
from pilotkit.records.pickles import refused_pieces
from pilotkit.records.tensor_index import Piece
from pilotkit.train import checkpoint
from pilotkit.train.checkpoint import CheckpointError
from pilotkit.train.store import load_newest, save_step


@pytest.fixture(scope="module")
def intact(workload, tmp_path_factory):
    trainer = workload.build_trainer()
    trainer.train_step()
    return checkpoint.save(trainer, tmp_path_factory.mktemp("intact") / "c", config_text="").path


def test_all_of_100_random_corruptions_are_found_and_named(corruptions, intact, tmp_path):
    tally = corruptions.trials(intact, tmp_path, count=100, seed=0)
    assert sum(done for done, _ in tally.values()) == 100
    assert {kind: found for kind, (_, found) in tally.items()} == {kind: done for kind, (done, _) in tally.items()}
    assert not (tmp_path / "executed").exists()


def test_what_a_sound_checkpoint_holds(intact):
    checked = check(intact)
    assert checked.is_sound
    assert checked.step == 1
    names = [tensor.name for tensor in checked.tensors]
    assert "model.blocks.0.mlp.up.weight" in names
    embedding = next(tensor for tensor in checked.tensors if tensor.name == "model.token_embedding.weight")
    assert (embedding.dtype, embedding.shape, embedding.num_chunks) == ("float32", (32, 16), 1)


@pytest.mark.parametrize("name", [".metadata", "random-0.pt"])
def test_a_sealed_payload_is_refused_and_not_executed(name, corruptions, faults, workload, intact, tmp_path):
    copy = shutil.copytree(intact, tmp_path / "c")
    content = corruptions.Payload(tmp_path / "executed")
    if name == ".metadata":
        (copy / name).write_bytes(pickle.dumps(content))
    else:
        torch.save({"torch": content}, copy / name)
    faults.reseal(copy)
    assert check(copy).problems == [
        f"{copy / name}: refused: it holds a pickled posix.mkdir, and loading executes nothing"
    ]
    trainer = workload.build_trainer(model_seed=99)
    before = [param.detach().clone() for param in trainer.model.parameters()]
    with pytest.raises(CheckpointError, match=r"refused: it holds a pickled posix\.mkdir"):
        checkpoint.load(trainer, copy)
    assert all(torch.equal(was, now) for was, now in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.step == 0
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("write", [lambda content, path: path.write_bytes(pickle.dumps(content)), torch.save])
def test_what_a_file_holds_is_judged_and_not_its_name(write, corruptions, faults, intact, tmp_path):
    copy = shutil.copytree(intact, tmp_path / "c")
    write(corruptions.Payload(tmp_path / "executed"), copy / "weights.safetensors")
    faults.reseal(copy)
    assert check(copy).problems == [
        f"{copy}/weights.safetensors: refused: it holds a pickled posix.mkdir, and loading executes nothing"
    ]


def test_a_payload_among_the_tensors_of_a_shard_is_named(corruptions, tmp_path):
    shard = tmp_path / "__0_0.distcp"
    pieces = []
    with open(shard, "wb") as stream:
        for name, value in [("sound", torch.ones(2)), ("bad", corruptions.Payload(tmp_path / "executed"))]:
            buffer = io.BytesIO()
            torch.save(value, buffer)
            pieces.append(Piece(name, shard.name, stream.tell(), stream.write(buffer.getvalue())))
    expected = f"{shard}: bad: refused: it holds a pickled posix.mkdir, and loading executes nothing"
    assert refused_pieces(shard, pieces) == [expected]
    assert not (tmp_path / "executed").exists()


def test_links_are_not_what_was_saved(intact, tmp_path):
    copy = shutil.copytree(intact, tmp_path / "c")
    (copy / "random-0.pt").rename(tmp_path / "elsewhere.pt")
    (copy / "random-0.pt").symlink_to(tmp_path / "elsewhere.pt")
    (copy / "more").symlink_to(tmp_path)
    assert check(copy).problems == [
        f"{copy}/random-0.pt: is not the plain file that was written",
        f"{copy}/more: was not saved with this checkpoint",
    ]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        pytest.param(lambda plain: [], "holds no training state", id="another kind"),
        pytest.param(lambda plain: {**plain, "version": 2}, "version 2 is not known", id="version"),
        pytest.param(lambda plain: {"version": 1}, "lacks config_text, num_skipped_steps", id="names"),
    ],
)
def test_a_sealed_state_that_is_none_is_told(edit, words, faults, workload, intact, tmp_path):
    copy = shutil.copytree(intact, tmp_path / "c")
    plain = json.loads((copy / "trainer.json").read_text())
    (copy / "trainer.json").write_text(json.dumps(edit(plain)))
    faults.reseal(copy)
    with pytest.raises(CheckpointError, match=f"trainer.json: {words}"):
        checkpoint.load(workload.build_trainer(), copy)


def test_an_index_that_points_outside_is_refused(faults, workload, intact, tmp_path):
    copy = shutil.copytree(intact, tmp_path / "c")
    index = (copy / ".metadata").read_bytes()
    (copy / ".metadata").write_bytes(index.replace(b"__0_0.distcp", b"../..distcp/"))
    faults.reseal(copy)
    assert not check(copy).is_sound
    with pytest.raises(CheckpointError, match="names a file outside"):
        checkpoint.load(workload.build_trainer(), copy)


def test_a_manifest_that_points_outside_is_refused(intact, tmp_path):
    copy = shutil.copytree(intact, tmp_path / "c")
    (tmp_path / "other").write_bytes(b"")
    manifest.write(copy, [manifest.Entry("../other", 0, "")])
    assert check(copy).problems == [f"{copy}/manifest.json: names a file outside its folder: ../other"]


@pytest.fixture
def store(workload, tmp_path):
    store = CheckpointStore(tmp_path / "store")
    trainer = workload.build_trainer()
    for eval_loss in (3.0, 1.0, 2.0):
        trainer.train_step()
        save_step(store, trainer, config_text="", eval_loss=eval_loss)
    return store


def test_the_newest_sound_one_is_loaded_and_the_broken_one_named(faults, workload, store):
    newest = store.path_of(3)
    faults.flip_a_bit(newest / "__0_0.distcp")
    trainer = workload.build_trainer()
    loaded = load_newest(store, trainer, set_aside=False)
    assert (loaded.step, trainer.step, loaded.path) == (2, 2, store.path_of(2))
    expected = f"{newest}/__0_0.distcp: its content changed since it was written (sha256 differs)"
    assert loaded.passed_over == (expected,)
    assert newest_sound(store.root) == (store.path_of(2), [expected])
    assert [one.is_sound for one in check_store(store.root).checked] == [False, True, True]


def test_a_run_that_went_on_from_an_older_one_saves_again_where_the_damaged_one_was(faults, workload, store):
    """The damaged one must neither forbid that step nor be what a retention keeps instead of a sound one."""
    faults.flip_a_bit(store.path_of(3) / "__0_0.distcp")
    trainer = workload.build_trainer()
    assert load_newest(store, trainer).step == 2
    assert store.latest() == store.path_of(2)
    assert store.retain(Retention(keep_last=1)) == [store.path_of(1)]
    [left] = store.partials()
    assert (left.path.name, left.is_in_progress) == (".step-0000000003.damaged", False)
    trainer.train_step()
    save_step(store, trainer, config_text="", retention=Retention(keep_last=1))
    assert store.whole() == [store.path_of(3)]
    assert load_newest(store, workload.build_trainer()).step == 3
    assert store.clean() == [left]


def test_a_disk_that_refuses_what_follows_a_save_loses_nothing(workload, store, monkeypatch):
    trainer = workload.build_trainer()
    load_newest(store, trainer)
    trainer.train_step()

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_store.atomic, "write_text", full)
        patched.setattr(checkpoint_store, "claim", lambda part: part.mkdir())
        with pytest.raises(CheckpointError, match="is saved, but what follows a save failed: No space left"):
            save_step(store, trainer, config_text="")
    assert store.latest() == store.path_of(3)
    assert load_newest(store, workload.build_trainer()).step == 4
    assert store.latest() == store.path_of(4)


def test_a_deletion_that_was_cut_short_does_not_hinder_the_next_one(store):
    left = store.root / ".step-0000000001.gone"
    left.mkdir()
    (left / "file").touch()
    assert store.retain(Retention(keep_last=2)) == [store.path_of(1)]
    assert store.partials() == []


def test_all_broken_is_said_and_none_is_a_first_start(faults, workload, store, tmp_path):
    for path in store.whole():
        faults.flip_a_bit(path / "trainer.json")
    with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
        load_newest(store, workload.build_trainer())
    assert load_newest(CheckpointStore(tmp_path / "nothing"), workload.build_trainer()) is None


def test_one_of_another_run_is_not_passed_over(workload, store):
    with pytest.raises(CheckpointError, match="belongs to another run"):
        load_newest(store, workload.build_trainer(seed=6))


def test_retention_keeps_last_every_and_best(store):
    assert store.latest() == store.path_of(3)
    removed = store.retain(Retention(keep_last=1, keep_best=True))
    assert removed == [store.path_of(1)]
    assert store.whole() == [store.path_of(2), store.path_of(3)]
    assert store.retain(Retention(keep_last=1, keep_every_steps=2)) == []
    assert store.retain(Retention(keep_last=1)) == [store.path_of(2)]
    assert store.partials() == []


def test_a_full_disk_leaves_the_newest_loadable_and_its_space_free(workload, store):
    trainer = workload.build_trainer()
    load_newest(store, trainer)
    trainer.train_step()
    # A limit on the size of a file stands for the full disk: the write fails in the middle, in the same call.
    code = (
        "import sys, resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import importlib.util\n"
        "spec = importlib.util.spec_from_file_location('w', sys.argv[1])\n"
        "w = importlib.util.module_from_spec(spec); spec.loader.exec_module(w)\n"
        "from pathlib import Path\n"
        "from pilotkit.train.store import *\n"
        "store = CheckpointStore(Path(sys.argv[2])); t = w.build_trainer(); load_newest(store, t); t.train_step()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "save_step(store, t, config_text='')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(pilotkit.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code, workload.__spec__.origin, str(store.root)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "cannot be saved" in done.stderr
    assert store.partials() == []
    assert store.latest() == store.path_of(3)
    assert load_newest(store, workload.build_trainer()).step == 3
