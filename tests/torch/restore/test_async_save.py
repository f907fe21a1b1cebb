"""Asynchronous saving: the values at the call, `latest` only after the last byte, and never a gap."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from pilotkit.records.checkpoint_check import check
from pilotkit.records.checkpoint_store import CheckpointStore, Retention
from pilotkit.records.digests import DigestedStream
from pilotkit.train import fingerprint
from pilotkit.train.async_save import AsyncSaver
from pilotkit.train.checkpoint import CheckpointError
from pilotkit.train.store import load_newest, save_step, save_step_async


@pytest.fixture
def saver():
    saver = AsyncSaver()
    yield saver
    saver.close()


@pytest.fixture
def slow_disk(monkeypatch):
    """The first byte of a tensor waits until the event is set; `begun` is set when it does."""
    go, begun = threading.Event(), threading.Event()
    write = DigestedStream.write

    def waits(self, data):
        begun.set()
        assert go.wait(60)
        return write(self, data)

    monkeypatch.setattr(DigestedStream, "write", waits)
    yield go, begun
    go.set()


def test_what_is_saved_is_the_moment_of_the_call(workload, saver, slow_disk, tmp_path):
    go, begun = slow_disk
    store = CheckpointStore(tmp_path)
    # Dropout draws from the generators, which must be saved as they were, too.
    trainer = workload.build_trainer(dropout=0.1)
    trainer.train_step()
    expected = fingerprint.of_rank(trainer)
    pending = save_step_async(store, trainer, saver=saver, config_text="")
    assert begun.wait(60)
    trainer.train_step()
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.fill_(7.0)
    torch.manual_seed(99)
    assert not pending.done()
    assert store.whole() == []
    assert store.latest() is None
    [part] = store.partials()
    assert part.is_in_progress
    go.set()
    saved = pending.result()
    assert store.latest() == saved.path == store.path_of(1)
    assert check(saved.path).is_sound
    assert 0 < saved.blocking_seconds < saved.seconds
    assert saved.num_bytes == check(saved.path).num_bytes
    restored = workload.build_trainer(dropout=0.1)
    loaded = load_newest(store, restored)
    assert loaded is not None
    assert loaded.step == 1
    assert fingerprint.of_rank(restored) == expected


def test_a_save_in_progress_is_never_deleted_and_the_one_before_stays_until_it_is_there(
    workload, saver, slow_disk, tmp_path
):
    go, begun = slow_disk
    store = CheckpointStore(tmp_path)
    trainer = workload.build_trainer()
    go.set()
    trainer.train_step()
    save_step(store, trainer, config_text="")
    go.clear()
    begun.clear()
    trainer.train_step()
    pending = save_step_async(store, trainer, saver=saver, config_text="", retention=Retention(keep_last=1))
    assert begun.wait(60)
    # A retention and a cleaning that fall into the save.
    assert store.retain(Retention(keep_last=1)) == []
    assert store.clean(silent_seconds=0) == []
    assert store.latest() == store.path_of(1)
    assert load_newest(store, workload.build_trainer()).step == 1
    go.set()
    pending.result()
    assert store.whole() == [store.path_of(2)]
    assert store.latest() == store.path_of(2)


def test_one_save_at_a_time(workload, saver, tmp_path):
    store = CheckpointStore(tmp_path)
    trainer = workload.build_trainer()
    pending = []
    for _ in range(4):
        trainer.train_step()
        pending.append(save_step_async(store, trainer, saver=saver, config_text="", retention=Retention(keep_last=2)))
        assert all(one.done() for one in pending[:-1])
    saver.wait()
    assert store.whole() == [store.path_of(3), store.path_of(4)]
    assert store.partials() == []


def test_a_save_that_fails_is_told_at_the_next_call_and_leaves_nothing(workload, saver, monkeypatch, tmp_path):
    store = CheckpointStore(tmp_path)
    trainer = workload.build_trainer()
    trainer.train_step()

    def full(self, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DigestedStream, "write", full)
        pending = save_step_async(store, trainer, saver=saver, config_text="")
        with pytest.raises(CheckpointError, match=r"cannot be saved.*No space left on device"):
            pending.result()
    assert (store.whole(), store.partials(), store.latest()) == ([], [], None)
    trainer.train_step()
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_step_async(store, trainer, saver=saver, config_text="")
    save_step_async(store, trainer, saver=saver, config_text="").result()
    assert store.latest() == store.path_of(2)


def test_a_step_that_is_saved_already_is_refused_at_once(workload, saver, tmp_path):
    store = CheckpointStore(tmp_path)
    trainer = workload.build_trainer()
    save_step_async(store, trainer, saver=saver, config_text="").result()
    with pytest.raises(CheckpointError, match="exists already"):
        save_step_async(store, trainer, saver=saver, config_text="")
    assert check(Path(store.path_of(0))).is_sound
