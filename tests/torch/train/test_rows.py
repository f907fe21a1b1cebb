"""The order of rows: the same for every world size and number of workers, continued exactly, each row once an epoch."""

import random

import numpy as np
import pytest
import torch

from pilotkit.errors import ConfigError
from pilotkit.train.rows import RowOrder, RowStream, read_rows


class Rows:
    """Row i holds i, and a random draw of each kind, as augmentations make them."""

    def __init__(self, num_rows):
        self.num_rows = num_rows

    def __len__(self):
        return self.num_rows

    def __getitem__(self, index):
        draws = [random.random(), np.random.rand(), float(torch.rand(()))]
        return {"input_ids": torch.tensor([index]), "draws": torch.tensor(draws, dtype=torch.float64)}


def stream(*, num_rows=40, micro_batch_size=4, seed=0, rank=0, world_size=1, position=0, num_workers=0):
    return RowStream(
        Rows(num_rows),
        micro_batch_size=micro_batch_size,
        seed=seed,
        rank=rank,
        world_size=world_size,
        position=position,
        num_workers=num_workers,
    )


def global_ids(num_batches, *, world_size, **options):
    """Row ids in the global order: rank after rank within each step."""
    streams = [stream(rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    ids = []
    for _ in range(num_batches):
        for rank_stream in streams:
            ids.extend(rank_stream.next().row_ids)
    for rank_stream in streams:
        rank_stream.close()
    return ids


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_global_order_is_the_same_for_every_world_size(world_size):
    expected = [RowOrder(40, seed=0).row_at(position) for position in range(80)]
    found = global_ids(20 // world_size, world_size=world_size)
    assert found == expected
    assert sorted(found[:40]) == list(range(40))
    assert sorted(found[40:]) == list(range(40))
    assert found[:40] != found[40:], "every epoch has an order of its own"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_position_counts_rows_handed_out_not_prefetched(num_workers):
    rows = stream(num_workers=num_workers, world_size=2, rank=1)
    assert rows.position == 0
    for batch in range(1, 4):
        rows.next()
        assert rows.position == batch * 8
    rows.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2])
def test_continues_at_step_6_of_10_at_another_world_size(num_workers, world_size):
    expected = global_ids(20, world_size=1)
    first = stream(num_workers=num_workers)
    ids = [row for _ in range(6) for row in first.next().row_ids]
    state = first.state_dict()
    first.close()
    continued = [stream(rank=rank, world_size=world_size, num_workers=num_workers) for rank in range(world_size)]
    for rank_stream in continued:
        rank_stream.load_state_dict(state)
    for _ in range(4 // world_size):
        for rank_stream in continued:
            ids.extend(rank_stream.next().row_ids)
    for rank_stream in continued:
        rank_stream.close()
    assert ids == expected[:40]


def test_workers_change_neither_ids_nor_random_draws():
    alone, helped = stream(), stream(num_workers=2)
    for _ in range(12):
        here, there = alone.next(), helped.next()
        assert here.row_ids == there.row_ids
        assert here.tensors["input_ids"].flatten().tolist() == list(here.row_ids)
        assert torch.equal(here.tensors["draws"], there.tensors["draws"])
    helped.close()


def test_random_draws_never_repeat_across_ranks_and_epochs_and_come_again():
    def draws(rank):
        rows = stream(num_rows=8, rank=rank, world_size=2)
        return torch.cat([rows.next().tensors["draws"] for _ in range(4)])  # 4 x 8 rows: two ranks, two epochs

    both = torch.cat([draws(0), draws(1)])
    for kind in range(3):
        assert len(set(both[:, kind].tolist())) == 32
    assert torch.equal(draws(0), draws(0))


def test_two_ranks_with_two_workers_over_two_epochs_are_eight_different_streams():
    """Case R62: each worker's share of an epoch, on each rank, draws what no other one draws; again, the same."""

    def streams(seed):
        found = []
        for rank in range(2):
            rows = stream(num_rows=16, micro_batch_size=2, seed=seed, rank=rank, world_size=2, num_workers=2)
            # 4 batches an epoch and rank; the loader deals them to its workers in turn.
            batches = [rows.next().tensors["draws"] for _ in range(8)]
            rows.close()
            for epoch in range(2):
                for worker in range(2):
                    found.append(torch.cat(batches[4 * epoch + worker : 4 * epoch + 4 : 2]))
        return found

    eight = streams(seed=0)
    for kind in range(3):
        assert len({tuple(draws[:, kind].tolist()) for draws in eight}) == 8
        every_draw = torch.cat([draws[:, kind] for draws in eight]).tolist()
        assert len(set(every_draw)) == len(every_draw) == 32
    assert all(torch.equal(one, other) for one, other in zip(eight, streams(seed=0), strict=True))
    assert not torch.equal(eight[0], streams(seed=1)[0])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_reading_leaves_the_random_states_of_training_alone(num_workers):
    def draw():
        return random.random(), np.random.rand(), float(torch.rand(()))

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = draw()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    rows = stream(num_workers=num_workers)
    rows.next()
    rows.close()
    assert draw() == expected


def test_reading_does_not_seed_the_devices(monkeypatch):
    monkeypatch.setattr(torch, "manual_seed", None)  # torch's own function also seeds every accelerator
    stream().next()


def test_close_ends_the_workers_and_next_starts_again():
    rows = stream(num_workers=2)
    rows.next()
    processes = list(rows._iterator._workers)
    assert all(process.is_alive() for process in processes)
    rows.close()
    assert not any(process.is_alive() for process in processes)
    assert rows.next().row_ids == tuple(global_ids(2, world_size=1)[4:])
    rows.close()


def test_batch_may_be_larger_than_the_data():
    ids = stream(num_rows=3, micro_batch_size=7).next().row_ids
    assert sorted(ids[:3]) == [0, 1, 2]
    assert sorted(ids[3:6]) == [0, 1, 2]


def test_position_in_other_data_is_refused():
    rows = stream(seed=1, num_rows=41)
    with pytest.raises(ConfigError) as caught:
        rows.load_state_dict(stream().state_dict())
    assert str(caught.value) == (
        "2 problems in the configuration; nothing was started.\n"
        "1. train.seed=1\n    allowed: 0\n    to mend: continue with the seed that the run was started with\n"
        "2. data=41 rows\n    allowed: 40 rows\n"
        "    to mend: bring back the data and the train.seq_len that the run was started with"
    )


def test_read_rows_stacks_the_named_rows():
    first, second = read_rows(Rows(5), [4, 1]), read_rows(Rows(5), [1])
    assert first["input_ids"].tolist() == [[4], [1]]
    assert torch.equal(first["draws"][1:], second["draws"]), "an evaluation sees the same augmentation each time"
