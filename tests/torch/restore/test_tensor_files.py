"""Our reader and writer against torch's own, on the same files, for every form that a tensor takes in them."""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem

from pilotkit.records.digests import DigestedStream
from pilotkit.train.tensor_files import SPLIT_BYTES, STORAGES, TensorReader, TensorWriter, num_files_for

FORMS = {
    **{str(dtype): torch.arange(12).reshape(3, 4).to(dtype) for dtype in STORAGES},
    "scalar": torch.tensor(7.5),
    "empty": torch.zeros(0, 3),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "part of a larger storage": torch.arange(40.0)[5:17],
    "every other element": torch.arange(24.0)[::2],
    "channels last": torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last),
    "complex": torch.arange(6).to(torch.complex64),
    "float8": torch.arange(6.0).to(torch.float8_e4m3fn),
    "large": torch.arange(200_000.0),
}


@pytest.fixture(autouse=True)
def _alone():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@pytest.fixture(scope="module", params=[1, 2])
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    writer = TensorWriter(folder, num_files=request.param)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(dict(FORMS), storage_writer=writer, no_dist=True)
    return folder, writer


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def test_the_writer_knows_every_file_as_it_lies_on_the_disk(written):
    folder, writer = written
    assert {entry.name for entry in writer.entries} == {path.name for path in folder.iterdir()}
    for entry in writer.entries:
        content = (folder / entry.name).read_bytes()
        assert (entry.num_bytes, entry.sha256) == (len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("num_files", [1, 2])
def test_every_byte_of_every_file_is_flushed_to_the_disk(num_files, tmp_path, monkeypatch):
    """Not the buffer's above, of which torch's own writer leaves the whole index to chance."""
    flushed = {}
    fsync = os.fsync

    def told(descriptor):
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        flushed[path.name.removesuffix(".tmp")] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fsync", told)
    dcp.save(dict(FORMS), storage_writer=TensorWriter(tmp_path, num_files=num_files), no_dist=True)
    assert flushed == {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert ".metadata" in flushed


@pytest.mark.parametrize("file", ["__0_0.distcp", "__0_1.distcp"])
def test_a_file_that_cannot_be_written_fails_the_save_though_another_thread_writes_it(file, tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device")

    original = FileSystem.create_stream

    @contextmanager
    def create_stream(self, path, mode):
        with original(self, path, mode) as raw:
            if Path(path).name == file:
                monkeypatch.setattr(DigestedStream, "write", full)
            yield raw

    monkeypatch.setattr(FileSystem, "create_stream", create_stream)
    with pytest.raises(CheckpointException, match="No space left on device"):
        dcp.save(dict(FORMS), storage_writer=TensorWriter(tmp_path, num_files=2), no_dist=True)


def test_a_small_save_and_one_from_an_accelerator_are_one_file():
    large = torch.empty(SPLIT_BYTES // 4 + 1, device="meta")
    assert num_files_for([large], on_cpu=True) == 2
    assert num_files_for([large], on_cpu=False) == 1
    assert num_files_for(FORMS.values(), on_cpu=True) == 1


def test_the_error_that_torch_s_archive_hides_is_the_one_that_is_told(tmp_path, monkeypatch):
    def no_thread(self, data):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(DigestedStream, "write", no_thread)
    with pytest.raises(CheckpointException, match="can't start new thread") as caught:
        dcp.save(dict(FORMS), storage_writer=TensorWriter(tmp_path, num_files=1), no_dist=True)
    ((cause, _),) = caught.value.failures.values()
    assert str(cause) == "can't start new thread"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_file_that_another_thread_cannot_open_fails_the_save(tmp_path, monkeypatch):
    original = FileSystem.create_stream

    @contextmanager
    def create_stream(self, path, mode):
        if threading.current_thread() is not threading.main_thread():
            raise OSError(2, "No such file or directory")
        opened.wait(10)
        with original(self, path, mode) as raw:
            yield raw

    opened = threading.Event()
    monkeypatch.setattr(FileSystem, "create_stream", create_stream)
    monkeypatch.setattr(threading, "excepthook", lambda args: opened.set())
    with pytest.raises(CheckpointException, match=f"of {len(FORMS)} tensors were written"):
        dcp.save(dict(FORMS), storage_writer=TensorWriter(tmp_path, num_files=2), no_dist=True)


@pytest.mark.parametrize("form", FORMS)
def test_one_form_comes_back_bit_for_bit_through_both_readers(form, written):
    folder, _ = written
    for reader in (TensorReader(folder), dcp.FileSystemReader(folder)):
        target = {form: torch.zeros_like(FORMS[form])}
        dcp.load(target, storage_reader=reader, no_dist=True)
        assert target[form].stride() == torch.zeros_like(FORMS[form]).stride()
        assert bits(target[form]) == bits(FORMS[form])


def test_a_contiguous_target_takes_what_was_saved_transposed(written):
    folder, _ = written
    target = {"transposed": torch.zeros(4, 3)}
    dcp.load(target, storage_reader=TensorReader(folder), no_dist=True)
    assert torch.equal(target["transposed"], FORMS["transposed"])


def test_another_dtype_is_cast_as_torch_casts(written):
    folder, _ = written
    target = {"large": torch.zeros(200_000, dtype=torch.bfloat16)}
    dcp.load(target, storage_reader=TensorReader(folder), no_dist=True)
    assert torch.equal(target["large"], FORMS["large"].bfloat16())


def test_whole_tensors_are_read_straight_and_odd_ones_by_torch(written, monkeypatch):
    folder, _ = written
    left = []
    torchs = dcp.FileSystemReader.read_data
    monkeypatch.setattr(
        dcp.FileSystemReader,
        "read_data",
        lambda self, plan, planner: (left.append(plan), torchs(self, plan, planner))[1],
    )
    dcp.load(
        {name: torch.zeros_like(value) for name, value in FORMS.items()},
        storage_reader=TensorReader(folder),
        no_dist=True,
    )
    names = {item.dest_index.fqn for plan in left for item in plan.items}
    assert names == {"transposed", "every other element", "channels last", "complex", "float8", "empty"} & names
    assert not names & {"scalar", "large", "torch.float32", "torch.bfloat16", "torch.bool", "part of a larger storage"}
