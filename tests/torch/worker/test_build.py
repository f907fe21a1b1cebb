"""From a configuration to a trainer: what is asked of the machine first, and the mesh of the ranks that are here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pilotkit.errors import ConfigError
from pilotkit.records.run_dir import RunDir
from pilotkit.train import factories
from pilotkit.worker import build as module
from pilotkit.worker.build import SharedMemoryTooSmall, build, mesh_of, precision_policy
from pilotkit.worker.phases.numerics import switches
from pilotkit.worker.session import open_session

MakeRunDir = Callable[..., RunDir]


@pytest.mark.parametrize(
    ("strategy", "world_size", "dp_shard", "mesh"),
    [
        ("single", 1, 1, (1, 1)),
        ("ddp", 4, 1, (4, 1)),
        ("fsdp", 4, 4, (1, 4)),
        ("hsdp", 8, 2, (4, 2)),
        ("hsdp", 8, 8, (2, 4)),  # a group that fills the node: half, so that both kinds of traffic are there
        ("hsdp", 8, 64, (2, 4)),  # a group that spans nodes
        ("hsdp", 8, 3, (2, 4)),  # a group that does not divide the node
        ("hsdp", 8, 1, (2, 4)),
        ("hsdp", 2, 1, (2, 1)),
        ("hsdp", 5, 5, (5, 1)),  # a prime number of ranks has no parts
        ("hsdp", 9, 9, (3, 3)),
    ],
)
def test_the_mesh_multiplies_to_the_ranks_that_are_here(
    strategy: str, world_size: int, dp_shard: int, mesh: tuple[int, int]
) -> None:
    session: Any = SimpleNamespace(world_size=world_size, arithmetic=SimpleNamespace(dp_shard=dp_shard))
    assert mesh_of(session, strategy=strategy) == mesh
    assert mesh[0] * mesh[1] == world_size


def test_the_parts_and_their_sizes(make_run_dir: MakeRunDir) -> None:
    with open_session(make_run_dir(phase="measure"), phase="measure") as session:
        built = build(session, strategy="single")
    assert built.num_params == sum(parameter.numel() for parameter in built.trainer.model.parameters())
    assert built.batch_bytes == 2 * 2 * 32 * 8
    assert built.model_load_seconds > 0
    assert built.data_open_seconds > 0
    assert torch.are_deterministic_algorithms_enabled()
    built.close()


def test_the_same_seed_is_the_same_model(make_run_dir: MakeRunDir) -> None:
    def weights(seed: int) -> torch.Tensor:
        with open_session(make_run_dir({"train.seed": seed}, phase="measure"), phase="measure") as session:
            built = build(session, strategy="single")
        built.close()
        return torch.cat([parameter.detach().flatten() for parameter in built.trainer.model.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_loaders_without_room_are_refused_before_they_start(
    make_run_dir: MakeRunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1 rank x 2 workers x 2 batches of 1 KiB
    run_dir = make_run_dir({"data.num_workers": 2}, phase="measure")
    monkeypatch.setattr(module, "shared_memory_free_bytes", lambda: 4095)
    with open_session(run_dir, phase="measure") as session, pytest.raises(SharedMemoryTooSmall) as caught:
        build(session, strategy="single")
    assert str(caught.value) == (
        "the shared memory has 4.00 KiB free, and the loaders need 4.00 KiB: 1 ranks x data.num_workers 2 "
        "x data.prefetch_factor 2, 1.00 KiB a batch. "
        "Make /dev/shm larger (docker run --shm-size=...), or lower data.num_workers"
    )
    monkeypatch.setattr(module, "shared_memory_free_bytes", lambda: 4096)
    with open_session(run_dir, phase="measure") as session:
        build(session, strategy="single").close()


def test_the_precision_section_is_handed_on_whole(make_run_dir: MakeRunDir, default_config: Any) -> None:
    policy = precision_policy(default_config)
    section = dataclasses.asdict(default_config.precision)
    for field in dataclasses.fields(policy):
        assert getattr(policy, field.name) == section[field.name]


def _nothing(**_: Any) -> None:
    return None


def _frozen(**_: Any) -> torch.nn.Module:
    return torch.nn.Linear(2, 2).requires_grad_(requires_grad=False)


def _plain_output(**_: Any) -> torch.nn.Module:
    class Plain(torch.nn.Linear):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return super().forward(input_ids.float())

    return Plain(32, 2)


def _replace_factory(monkeypatch: pytest.MonkeyPatch, section: str, factory: Callable[..., Any]) -> None:
    real = factories.resolve
    monkeypatch.setattr(
        factories, "resolve", lambda path, key: factory if key == f"{section}.factory" else real(path, key=key)
    )


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (_nothing, "which returned NoneType"),
        (_frozen, "whose module has no parameter that requires a gradient"),
        (_plain_output, "a model whose output is a Tensor with loss None"),
    ],
)
def test_a_model_that_breaks_the_contract_is_told_in_its_words(
    make_run_dir: MakeRunDir, monkeypatch: pytest.MonkeyPatch, factory: Callable[..., Any], words: str
) -> None:
    _replace_factory(monkeypatch, "model", factory)
    with open_session(make_run_dir(phase="measure"), phase="measure") as session, pytest.raises(ConfigError) as raised:
        build(session, strategy="single").trainer.train_step()
    (problem,) = raised.value.problems
    assert problem.key == "model.factory"
    assert words in str(problem.value)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"input_ids": "text"}], "whose first row is {input_ids: str}"),
        ([7], "whose first row is int"),
        ([{"input_ids": torch.zeros(3)}, {"input_ids": torch.zeros(4)}], "row 1: {'input_ids': (4,)}"),
    ],
    ids=["text", "a number", "two shapes"],
)
def test_rows_that_make_no_batch_are_told_in_words(
    make_run_dir: MakeRunDir, monkeypatch: pytest.MonkeyPatch, rows: list[Any], words: str
) -> None:
    _replace_factory(monkeypatch, "data", lambda **_: rows)
    with open_session(make_run_dir(phase="measure"), phase="measure") as session, pytest.raises(ConfigError) as raised:
        build(session, strategy="single").trainer.train_step()
    (problem,) = raised.value.problems
    assert problem.key == "data.factory"
    assert words in str(problem.value)


def test_a_split_in_the_options_is_refused(make_run_dir: MakeRunDir) -> None:
    """It would go before our own, and evaluation would read the rows of training."""
    run_dir = make_run_dir({"data.kwargs": {"split": "train"}}, phase="measure")
    with open_session(run_dir, phase="measure") as session, pytest.raises(ConfigError) as raised:
        build(session, strategy="single")
    (problem,) = raised.value.problems
    assert (problem.key, problem.value) == ("data.kwargs.split", "train")


def test_fp32_is_not_tf32_whatever_a_factory_sets(make_run_dir: MakeRunDir) -> None:
    """Case R63: the precision decides, in matrix products and in convolutions, over a line in the user's module."""
    run_dir = make_run_dir({"model.kwargs": {"fault": "tf32"}}, phase="measure")
    with open_session(run_dir, phase="measure") as session:
        built = build(session, strategy="single")
        built.close()
    (told,) = built.overridden
    assert told.startswith(
        "torch.set_float32_matmul_precision('high'), torch.backends.fp32_precision='tf32' was set here"
    )
    assert switches() == {"matmul_allow_tf32": False, "cudnn_allow_tf32": False}
    backends: Any = torch.backends
    assert (backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision) == ("ieee", "none")
    assert (backends.fp32_precision, backends.cudnn.fp32_precision) == ("none", "none")  # what "none" inherits
