"""Checkpoints in an object store: a real S3 server on this machine, and the two protocols that fsspec brings along."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotkit.errors import CheckpointError, ConfigError
from pilotkit.records import manifest
from pilotkit.records.checkpoint_store import Retention
from pilotkit.records.digests import sha256_of
from pilotkit.records.remote_store import RemoteStore, fetch_given

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture
def s3_endpoint() -> Iterator[str]:
    """moto's server in a process of its own, so that everything goes over HTTP."""
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert select.select([server.stdout], [], [], 120)[0], "the server said nothing"
    yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    server.stdin.close()
    server.wait(60)
    server.stdout.close()


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path) -> RemoteStore:
    root = f"{tmp_path}/remote" if request.param == "file" else f"{tmp_path.name}/remote"
    return RemoteStore(f"{request.param}://{root}")


def saved(folder: Path, step: int, *, eval_loss: float | None = None) -> Path:
    """A whole checkpoint as a save leaves it; what its tensors are does not matter here."""
    path = folder / f"step-{step:010d}"
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(os.urandom(3000) + str(step).encode())
    (path / "trainer.json").write_text(json.dumps({"step": step}))
    entries = [manifest.Entry(name, *sha256_of(path / name)) for name in ("__0_0.distcp", "trainer.json")]
    manifest.write(path, entries, about={"step": step, "eval_loss": eval_loss})
    return path


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def content_there(store: RemoteStore, name: str) -> dict[str, bytes]:
    return {file: store._fs.cat_file(store._at(name, file)) for file in store._files(name)}


def there_and_back_bit_for_bit(store, tmp_path, monkeypatch):
    assert (store.whole(), store.latest(), store.fetch_newest(tmp_path / "none")) == ([], None, (None, []))
    for step in (1, 2):
        store.push(saved(tmp_path / "own", step))
    assert store.whole() == ["step-0000000001", "step-0000000002"]
    assert store.latest() == "step-0000000002"
    path, problems = store.fetch_newest(tmp_path / "here")
    assert problems == []
    assert path == tmp_path / "here" / "step-0000000002"
    assert content(path) == content(tmp_path / "own" / path.name)
    one, _ = fetch_given(f"{store.url}/step-0000000001", tmp_path / "one")
    assert content(one) == content(tmp_path / "own" / "step-0000000001")


def an_upload_that_was_cut_short_is_no_checkpoint_and_is_taken_up_again(store, tmp_path, monkeypatch):
    store.push(saved(tmp_path / "own", 1))
    path = saved(tmp_path / "own", 2)
    put, sent = store._fs.put_file, []

    def dies(source, target):
        if len(sent) == 2:  # before the manifest
            raise OSError("the connection is gone")
        sent.append(target)
        put(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(store._fs, "put_file", dies)
        with pytest.raises(CheckpointError, match="the connection is gone"):
            store.push(path)
    assert store.whole() == ["step-0000000001"]
    assert store.partial() == ["step-0000000002"]
    assert store.latest() == "step-0000000001"
    assert store.fetch_newest(tmp_path / "here")[0].name == "step-0000000001"
    store.push(path)
    assert store.partial() == []
    assert store.latest() == "step-0000000002"


def a_damaged_one_is_named_and_the_one_before_is_offered(store, tmp_path, monkeypatch):
    for step in (1, 2):
        store.push(saved(tmp_path / "own", step))
    store._fs.pipe_file(store._at("step-0000000002", "__0_0.distcp"), b"short")
    path, problems = store.fetch_newest(tmp_path / "here")
    assert path.name == "step-0000000001"
    assert problems == [f"{store.url}/step-0000000002/__0_0.distcp: 5 bytes, written with 3001"]
    assert [left.name for left in (tmp_path / "here").iterdir()] == ["step-0000000001"]
    assert fetch_given(f"{store.url}/step-0000000002", tmp_path / "two") == (None, problems)


def retention_and_never_over_another_one(store, tmp_path, monkeypatch):
    for step, eval_loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 2.5)):
        store.push(saved(tmp_path / "own", step, eval_loss=eval_loss), retention=Retention(keep_last=2, keep_best=True))
    assert store.whole() == ["step-0000000002", "step-0000000003", "step-0000000004"]
    assert store.retain(Retention(keep_last=1, keep_every_steps=3)) == ["step-0000000002"]
    assert store.partial() == []
    other = saved(tmp_path / "other", 4)
    kept = content_there(store, other.name)
    with pytest.raises(CheckpointError, match="exists already, and is sound; a checkpoint is never written over"):
        store.push(other)
    assert content_there(store, other.name) == kept


def a_damaged_copy_is_set_aside_and_put_again(store, tmp_path, monkeypatch):
    path = saved(tmp_path / "own", 2)
    store.push(saved(tmp_path / "own", 1))
    shard, where = store._at(path.name, "__0_0.distcp"), f"{store.url}/{path.name}"
    whole = (path / "__0_0.distcp").read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    seal = (path / "manifest.json").read_bytes()
    damages = {
        f"{where}/__0_0.distcp: 5 bytes, written with {len(whole)}": lambda: store._fs.pipe_file(shard, b"short"),
        f"{where}/__0_0.distcp: its content changed since it was written (sha256 differs)": lambda: store._fs.pipe_file(
            shard, flipped
        ),
        f"{where}/trainer.json: No such file or directory": lambda: store._fs.rm_file(
            store._at(path.name, "trainer.json")
        ),
        f"{where}/extra.bin: was not saved with this checkpoint": lambda: store._fs.pipe_file(
            store._at(path.name, "extra.bin"), b"foreign"
        ),
        f"{where}/manifest.json: its content changed since it was written (sha256 differs)": lambda: (
            store._fs.pipe_file(store._at(path.name, "manifest.json"), seal.replace(b'"step": 2', b'"step": 3'))
        ),
    }
    for told, do in damages.items():
        assert store.push(path) == []
        do()
        damaged = content_there(store, path.name)
        assert store.push(path) == [told]
        assert content_there(store, path.name) == content(path)
        assert content_there(store, f".{path.name}.damaged") == damaged
        assert store.whole() == ["step-0000000001", path.name]
    (left,) = store.partials()
    assert (left.path.name, left.is_in_progress) == (f".{path.name}.damaged", False)
    assert [one.path.name for one in store.clean()] == [left.path.name]
    assert store.partials() == []
    assert store.fetch_newest(tmp_path / "here") == (tmp_path / "here" / path.name, [])


def a_damaged_copy_is_not_given_up_when_setting_it_aside_is_cut_short(store, tmp_path, monkeypatch):
    path = saved(tmp_path / "own", 1)
    store.push(path)
    store._fs.pipe_file(store._at(path.name, "__0_0.distcp"), b"short")
    there = content_there(store, path.name)
    for method in ("cp_file", "rm", "put_file"):

        def dies(*args, **kwargs):
            raise OSError("the connection is gone")

        with monkeypatch.context() as patch:
            patch.setattr(store._fs, method, dies)
            with pytest.raises(CheckpointError, match="the connection is gone"):
                store.push(path)
        kept = [content_there(store, name) for name in (path.name, f".{path.name}.damaged")]
        assert there in kept
    store.push(path)
    assert content_there(store, path.name) == content(path)


def what_was_cut_short_before_latest_is_finished(store, tmp_path, monkeypatch):
    for step in (1, 2):
        store.push(saved(tmp_path / "own", step))
    path = saved(tmp_path / "own", 3)

    def dies(*args, **kwargs):
        raise OSError("the connection is gone")

    with monkeypatch.context() as patch:
        patch.setattr(store._fs, "pipe_file", dies)
        with pytest.raises(CheckpointError, match="the connection is gone"):
            store.push(path)
    assert store.latest() == "step-0000000002"
    assert store.push(path, retention=Retention(keep_last=1)) == []
    assert store.latest() == path.name
    assert store.whole() == [path.name]


def what_another_upload_left_is_no_part_of_this_one(store, tmp_path, monkeypatch):
    """One of more ranks was cut short; the run came back on fewer, and saved at the same step."""
    path = saved(tmp_path / "own", 1)
    store._fs.pipe_file(store._at(path.name, "__7_0.distcp"), b"of a rank that is gone")
    (partial,) = store.partials()
    assert (partial.path.name, partial.num_bytes, partial.is_in_progress) == (path.name, 22, True)
    assert store.clean() == []  # it may go on
    store.push(path)
    assert content_there(store, path.name) == content(path)
    store._fs.pipe_file(store._at("step-0000000009", "__0_0.distcp"), b"cut short")
    assert [one.path.name for one in store.clean(silent_seconds=0)] == ["step-0000000009"]
    assert store.fetch_newest(tmp_path / "here") == (tmp_path / "here" / path.name, [])


def a_damaged_one_of_this_machine_is_not_put(store, tmp_path, monkeypatch):
    path = saved(tmp_path / "own", 1)
    store.push(path)
    there = content_there(store, path.name)
    (path / "__0_0.distcp").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"is not put into a store\n.*__0_0.distcp: 5 bytes"):
        store.push(path)
    assert content_there(store, path.name) == there


TRIALS = (
    a_damaged_copy_is_set_aside_and_put_again,
    a_damaged_copy_is_not_given_up_when_setting_it_aside_is_cut_short,
    what_was_cut_short_before_latest_is_finished,
    what_another_upload_left_is_no_part_of_this_one,
    a_damaged_one_of_this_machine_is_not_put,
    there_and_back_bit_for_bit,
    an_upload_that_was_cut_short_is_no_checkpoint_and_is_taken_up_again,
    a_damaged_one_is_named_and_the_one_before_is_offered,
    retention_and_never_over_another_one,
)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.__name__)
def test_what_fsspec_brings_along(trial, store, tmp_path, monkeypatch):
    trial(store, tmp_path, monkeypatch)


def test_all_of_it_on_a_real_s3_server(s3_endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for number, trial in enumerate(TRIALS):
        store = RemoteStore(f"s3://bucket-{number}/run")
        store._fs.mkdir(f"bucket-{number}")
        trial(store, tmp_path / str(number), monkeypatch)


def test_a_protocol_that_is_not_here_is_one_clear_error():
    with pytest.raises(ConfigError) as caught:
        RemoteStore("nowhere://bucket/run")
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("restore.path", "nowhere://bucket/run")
    assert "pip install pilotkit[s3]" in problem.fix


def test_a_store_that_does_not_answer_is_told_and_restores_nothing(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    found, problems = fetch_given("s3://bucket/run", tmp_path)
    assert found is None
    assert problems[0].startswith("s3://bucket/run: ")
