"""How ranks, micro-batches and accumulation make one optimizer step, by hand and over a grid of every small case."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.config.batch import BatchArithmetic, batch_arithmetic, check_batch, largest_part
from pilotkit.config.schema import PilotConfig

Changed = Callable[..., PilotConfig]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            # 4 rows x 2 ranks; 8 x 128 = 1024 tokens a step; ceil(100e6 / 1024) = 97657
            {},
            BatchArithmetic(2, 2, 2, 1, 1, 8, 1024, 97657),
            id="the default",
        ),
        pytest.param(
            # 4 x 2 x 8 = 64 rows, 64 x 128 = 8192 tokens; ceil(100e6 / 8192) = 12208
            {"train.global_batch_size": 64},
            BatchArithmetic(2, 2, 2, 1, 8, 64, 8192, 12208),
            id="accumulation follows from the global batch",
        ),
        pytest.param(
            {"train.grad_accum_steps": 3, "train.total_tokens": 3072},
            BatchArithmetic(2, 2, 2, 1, 3, 24, 3072, 1),
            id="the global batch follows from accumulation, one step exactly",
        ),
        pytest.param(
            {"train.grad_accum_steps": 3, "train.total_tokens": 3073},
            BatchArithmetic(2, 2, 2, 1, 3, 24, 3072, 2),
            id="a last step that is not full is a step",
        ),
        pytest.param(
            {"parallelism.strategy": "hsdp", "parallelism.num_nodes": 4, "parallelism.nproc_per_node": 8},
            # 32 ranks: sharded in 8, replicated 4 times; 4 x 32 = 128 rows; ceil(100e6 / 16384) = 6104
            BatchArithmetic(32, 8, 4, 8, 1, 128, 16384, 6104),
            id="hsdp shards within a node",
        ),
        pytest.param(
            {"parallelism.strategy": "hsdp", "parallelism.nproc_per_node": 8},
            BatchArithmetic(8, 8, 2, 4, 1, 32, 4096, 24415),
            id="hsdp halves a single node",
        ),
        pytest.param(
            {"parallelism.strategy": "hsdp", "parallelism.nproc_per_node": 9},
            BatchArithmetic(9, 9, 3, 3, 1, 36, 4608, 21702),
            id="hsdp divides a node that cannot be halved",
        ),
        pytest.param(
            {"parallelism.strategy": "hsdp", "parallelism.nproc_per_node": 8, "parallelism.dp_replicate": 4},
            BatchArithmetic(8, 8, 4, 2, 1, 32, 4096, 24415),
            id="hsdp with the replicas given",
        ),
        pytest.param(
            {"parallelism.strategy": "single", "parallelism.nproc_per_node": 1, "train.global_batch_size": 4},
            BatchArithmetic(1, 1, 1, 1, 1, 4, 512, 195313),
            id="one process",
        ),
    ],
)
def test_arithmetic_by_hand(changed: Changed, values: dict[str, Any], expected: BatchArithmetic) -> None:
    config = changed(values)
    assert check_batch(config) == []
    assert batch_arithmetic(config) == expected


@pytest.mark.parametrize(("size", "part"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 1), (6, 3), (8, 4), (9, 3), (35, 7)])
def test_largest_part(size: int, part: int) -> None:
    assert largest_part(size) == part


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "hsdp"])
def test_mesh_over_a_grid(changed: Changed, strategy: str) -> None:
    """A mesh is accepted exactly when some pair multiplies to the world size and the strategy allows it."""
    degrees = (None, 1, 2, 3, 4, 8)
    config = changed({"parallelism.strategy": strategy})
    num_sound = 0
    for num_nodes, nproc, replicate, shard in itertools.product((1, 2), (1, 2, 3, 5, 8), degrees, degrees):
        parallelism = config.parallelism
        parallelism.num_nodes, parallelism.nproc_per_node = num_nodes, nproc
        parallelism.dp_replicate, parallelism.dp_shard = replicate, shard
        world_size = num_nodes * nproc
        possible = [
            (r, s)
            for r, s in itertools.product(range(1, world_size + 1), repeat=2)
            if r * s == world_size
            and replicate in (None, r)
            and shard in (None, s)
            and {"single": world_size == 1, "ddp": s == 1, "fsdp": r == 1, "hsdp": True}[strategy]
        ]
        case = (num_nodes, nproc, replicate, shard)
        assert (check_batch(config) == []) == bool(possible), case
        if possible:
            num_sound += 1
            found = batch_arithmetic(config)
            assert (found.dp_replicate, found.dp_shard) in possible, case
            assert (found.world_size, found.nproc_per_node) == (world_size, nproc), case
            assert found.dp_degree == world_size, case
    assert num_sound >= 4


def test_global_batch_over_a_grid(changed: Changed) -> None:
    """What is given is never changed; what is not given multiplies; anything else is refused."""
    config = changed({})
    train = config.train
    for micro, nproc, global_size, accum in itertools.product(
        (1, 3, 4), (1, 2, 5), (None, 1, 4, 12, 24, 60), (None, 1, 2, 3)
    ):
        train.micro_batch_size, config.parallelism.nproc_per_node = micro, nproc
        train.global_batch_size, train.grad_accum_steps = global_size, accum
        per_pass = micro * nproc
        sound = (
            global_size is None
            or (accum is None and global_size % per_pass == 0)
            or (accum is not None and global_size == per_pass * accum)
        )
        case = (micro, nproc, global_size, accum)
        assert (check_batch(config) == []) == sound, case
        if sound:
            found = batch_arithmetic(config)
            assert found.global_batch_size == micro * found.grad_accum_steps * found.dp_degree, case
            assert found.global_batch_size == (global_size or found.global_batch_size), case
            assert found.grad_accum_steps == (accum or found.grad_accum_steps), case
            assert found.tokens_per_step == found.global_batch_size * train.seq_len, case
            assert found.num_steps == math.ceil(train.total_tokens / found.tokens_per_step), case


def one_problem(config: PilotConfig) -> str:
    (problem,) = check_batch(config)
    return str(problem)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            {"train.global_batch_size": 20},
            "train.global_batch_size=20\n"
            "    allowed: a multiple of 8 = micro_batch_size 4 x dp_degree 2\n"
            "    to mend: set train.global_batch_size=16 or 24, or change train.micro_batch_size",
            id="not a multiple",
        ),
        pytest.param(
            {"train.global_batch_size": 7},
            "train.global_batch_size=7\n"
            "    allowed: a multiple of 8 = micro_batch_size 4 x dp_degree 2\n"
            "    to mend: set train.global_batch_size=8, or change train.micro_batch_size",
            id="less than one pass",
        ),
        pytest.param(
            {"train.global_batch_size": 64, "train.grad_accum_steps": 3},
            "train.global_batch_size=64\n"
            "    allowed: 24 = micro_batch_size 4 x grad_accum_steps 3 x dp_degree 2\n"
            "    to mend: set train.global_batch_size=24, or leave one of the two out to have it derived",
            id="does not multiply",
        ),
        pytest.param(
            {"parallelism.strategy": "single"},
            "parallelism.strategy=single\n"
            "    allowed: a world size of 1; here num_nodes 1 x nproc_per_node 2 = 2\n"
            "    to mend: set parallelism.num_nodes=1 parallelism.nproc_per_node=1, or choose parallelism=ddp",
            id="single over two",
        ),
        pytest.param(
            {"parallelism.strategy": "hsdp", "parallelism.dp_replicate": 3, "parallelism.nproc_per_node": 8},
            "parallelism.dp_replicate=3\n"
            "    allowed: dp_replicate * dp_shard == num_nodes * nproc_per_node; here 3 x 2 = 6, "
            "and num_nodes 1 x nproc_per_node 8 = 8\n"
            "    to mend: give only one of parallelism.dp_replicate and parallelism.dp_shard, "
            "one that divides the world size",
            id="replicas do not divide",
        ),
        pytest.param(
            {"parallelism.strategy": "fsdp", "parallelism.dp_replicate": 2},
            "parallelism.dp_replicate=2\n"
            "    allowed: 1, as FSDP shards over every rank (parallelism.strategy=fsdp)\n"
            "    to mend: leave parallelism.dp_replicate out, or choose parallelism=hsdp",
            id="fsdp replicates nothing",
        ),
        pytest.param(
            {"parallelism.strategy": "ddp", "parallelism.dp_shard": 2},
            "parallelism.dp_shard=2\n"
            "    allowed: 1, as DDP shards nothing (parallelism.strategy=ddp)\n"
            "    to mend: leave parallelism.dp_shard out, or choose parallelism=hsdp",
            id="ddp shards nothing",
        ),
    ],
)
def test_what_does_not_multiply_is_told_with_every_factor(
    changed: Changed, values: dict[str, Any], expected: str
) -> None:
    assert one_problem(changed(values)) == expected
