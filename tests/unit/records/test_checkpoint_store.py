"""What a folder of checkpoints says about saves that are going on, that were killed, and that are done."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import psutil
import pytest

from pilotkit.records.checkpoint_store import SAVING_FILE, CheckpointStore, claim, part_of, publish_folder

NOBODY = 2**22 + 1  # above the largest process id


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def _sign(part: Path, **owner: object) -> None:
    plain = json.loads((part / SAVING_FILE).read_text())
    (part / SAVING_FILE).write_text(json.dumps({**plain, **owner}))


def test_a_save_in_progress_is_reported_and_never_deleted(store: CheckpointStore) -> None:
    part = part_of(store.path_of(5))
    claim(part)
    (partial,) = store.partials()
    assert (partial.path, partial.is_in_progress) == (part, True)
    assert partial.reason == f"process {os.getpid()} is saving it"
    assert store.clean(silent_seconds=0) == []
    assert part.is_dir()
    assert store.whole() == []


def test_a_killed_save_is_reported_cleaned_and_taken_over(store: CheckpointStore) -> None:
    part = part_of(store.path_of(5))
    claim(part)
    _sign(part, pid=NOBODY)
    (partial,) = store.partials()
    assert (partial.is_in_progress, partial.reason) == (False, f"process {NOBODY}, which was saving it, is gone")
    (part / "__9_0.distcp").write_bytes(b"of the dead")
    claim(part)
    assert [path.name for path in part.iterdir()] == [SAVING_FILE]
    _sign(part, pid=NOBODY)
    assert [one.path for one in store.clean()] == [part]
    assert not part.exists()


def test_every_folder_that_a_first_save_made_is_flushed_into_its_parent(tmp_path: Path, monkeypatch) -> None:
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    flushed: list[str] = []
    fsync = os.fsync

    def told(descriptor: int) -> None:
        fsync(descriptor)
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", told)
    part = part_of(store.path_of(5))
    claim(part)
    assert {str(tmp_path), str(tmp_path / "run")} <= set(flushed)
    flushed.clear()
    publish_folder(part, store.path_of(5))
    assert flushed == [str(part), str(store.root)]
    flushed.clear()
    claim(part_of(store.path_of(6)))
    assert str(tmp_path) not in flushed  # there before


def test_a_process_id_that_was_given_to_another_process_is_not_the_saver(store: CheckpointStore) -> None:
    part = part_of(store.path_of(5))
    claim(part)
    _sign(part, started=1.0)
    assert not store.partials()[0].is_in_progress


def test_a_living_process_is_not_disturbed(store: CheckpointStore) -> None:
    part = part_of(store.path_of(5))
    claim(part)
    parent = psutil.Process(os.getppid())
    _sign(part, pid=parent.pid, started=parent.create_time())
    with pytest.raises(FileExistsError) as caught:
        claim(part)
    assert caught.value.strerror == f"another save is in progress there (process {parent.pid} is saving it)"


@pytest.mark.parametrize(("age", "in_progress"), [(60, True), (3600, False)])
def test_a_saver_on_another_machine_is_dead_when_it_was_silent_for_long(
    age: float, in_progress: bool, store: CheckpointStore
) -> None:
    part = part_of(store.path_of(5))
    claim(part)
    _sign(part, host=f"not-{socket.gethostname()}")
    for path in (part / SAVING_FILE, part):
        os.utime(path, (time.time() - age, time.time() - age))
    assert store.partials()[0].is_in_progress is in_progress
    assert bool(store.clean()) is not in_progress


def test_latest_never_goes_back_and_never_names_what_is_gone(store: CheckpointStore) -> None:
    assert store.latest() is None
    for step in (2, 1):
        part = part_of(store.path_of(step))
        claim(part)
        publish_folder(part, store.path_of(step))
        store.publish(store.path_of(step))
        assert store.latest() == store.path_of(2)
    assert not (store.path_of(2) / SAVING_FILE).exists()
    store.path_of(2).rmdir()
    assert store.latest() is None
    (store.root / "latest").write_text("../elsewhere\n")
    assert store.latest() is None


def test_a_deletion_that_was_cut_short_is_a_left_over(store: CheckpointStore) -> None:
    gone = store.root / ".step-0000000001.gone"
    gone.mkdir()
    assert [(one.is_in_progress, one.reason) for one in store.partials()] == [(False, "its deletion was cut short")]
    assert store.whole() == []
    store.clean()
    assert store.partials() == []


def test_order_is_that_of_steps_and_other_folders_are_no_checkpoints(store: CheckpointStore) -> None:
    for name in ("step-0000000010", "step-0000000009", "step-10000000000", "export", "step-3"):
        (store.root / name).mkdir()
    assert [path.name for path in store.whole()] == ["step-0000000009", "step-0000000010", "step-10000000000"]
