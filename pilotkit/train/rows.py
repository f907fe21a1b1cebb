"""The endless stream of rows that one rank trains on: order, position, loader processes. Used by the trainer.

The order is global: row number k of the run is the same for every world size, number of workers and prefetch, so a run
continues anywhere. A dataset's own random draws are seeded by k, so they continue too, and never repeat across workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from pilotkit.errors import ConfigError, Problem
from pilotkit.train.seeding import derive_seed, preserved_random_state, seed_host_streams

CPU = torch.device("cpu")


class RowSource(Protocol):
    """A map-style dataset: what `data.factory` returns."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class LoadedBatch:
    """One micro-batch of one rank. Tensors are (micro_batch_size, ...), on the CPU."""

    row_ids: tuple[int, ...]
    tensors: dict[str, Tensor]


class RowOrder:
    """Row of the dataset at each position of the run: a new seeded permutation for every epoch."""

    def __init__(self, num_rows: int, *, seed: int) -> None:
        self.num_rows = num_rows
        self.seed = seed
        self._epoch = -1
        # No tensor: it stays on the host, and what counts tensors on the processor would count it as the run's.
        self._permutation = np.empty(0, dtype=np.int64)

    def row_at(self, position: int) -> int:
        """`position` counts rows from the start of the run, over all ranks."""
        epoch, offset = divmod(position, self.num_rows)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
            self._permutation = torch.randperm(self.num_rows, generator=generator).numpy().copy()
            self._epoch = epoch
        return int(self._permutation[offset])


class RowStream:
    """Batches of one rank, from `position` on. At position p rank r takes rows p + r * micro_batch_size and following.

    Every `next()` moves the position by world_size * micro_batch_size: all ranks step together.
    """

    def __init__(
        self,
        dataset: RowSource,
        *,
        micro_batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        position: int = 0,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
    ) -> None:
        assert 0 <= rank < world_size, (rank, world_size)
        self._order = RowOrder(len(dataset), seed=seed)
        self._rows = _SeededRows(dataset, seed=seed)
        self._micro_batch_size = micro_batch_size
        self._rank = rank
        self._world_size = world_size
        self._num_workers = num_workers
        self._prefetch_factor = prefetch_factor
        self._pin_memory = pin_memory
        self._iterator: Iterator[Any] | None = None
        self.position = position
        """Rows handed out to all ranks; batches that workers hold ready are not counted."""

    @property
    def epoch(self) -> int:
        """How many times all rows have been handed out."""
        return self.position // self._order.num_rows

    def next(self) -> LoadedBatch:
        """The next micro-batch of this rank. The first call starts the loader processes."""
        if self._iterator is None:
            self._iterator = self._start()
        row_ids, tensors = next(self._iterator)
        self.position += self._world_size * self._micro_batch_size
        return LoadedBatch(tuple(row_ids), tensors)

    def close(self) -> None:
        """End the loader processes. A later `next()` starts them again at the same position."""
        # The loader's iterator ends its processes when the last reference goes, which is this one.
        self._iterator = None

    def state_dict(self) -> dict[str, int]:
        """Position, and what it is a position in. Plain ints."""
        return {"position": self.position, "num_rows": self._order.num_rows, "seed": self._order.seed}

    def check_state_dict(self, state: Mapping[str, int]) -> None:
        """Raises ConfigError when `state` is a position in another order of rows."""
        problems = []
        if state["seed"] != self._order.seed:
            fix = "continue with the seed that the run was started with"
            problems.append(Problem("train.seed", self._order.seed, str(state["seed"]), fix))
        if state["num_rows"] != self._order.num_rows:
            fix = "bring back the data and the train.seq_len that the run was started with"
            problems.append(Problem("data", f"{self._order.num_rows} rows", f"{state['num_rows']} rows", fix))
        if problems:
            raise ConfigError(problems)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue at a saved position, at any world size. Raises ConfigError as `check_state_dict` does."""
        self.check_state_dict(state)
        self.close()
        self.position = state["position"]

    def _start(self) -> Iterator[Any]:
        with_workers: dict[str, Any] = {"prefetch_factor": self._prefetch_factor} if self._num_workers else {}
        loader: DataLoader[Any] = DataLoader(
            self._rows,
            batch_sampler=_BatchPositions(self),
            num_workers=self._num_workers,
            pin_memory=self._pin_memory,
            collate_fn=_collate,
            worker_init_fn=die_with_the_rank if self._num_workers else None,
            # A generator of its own: without one the loader draws from torch's, which training draws from.
            generator=torch.Generator().manual_seed(self._order.seed),
            **with_workers,
        )
        return iter(loader)


class _BatchPositions:
    """An endless batch sampler: lists of (position, row), one list a micro-batch of this rank."""

    def __init__(self, stream: RowStream) -> None:
        self._order = stream._order
        self._start = stream.position + stream._rank * stream._micro_batch_size
        self._stride = stream._world_size * stream._micro_batch_size
        self._micro_batch_size = stream._micro_batch_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        start = self._start
        while True:
            positions = range(start, start + self._micro_batch_size)
            yield [(position, self._order.row_at(position)) for position in positions]
            start += self._stride


class _SeededRows(Dataset[Any]):
    """The dataset with every row read under a seed of its own. A Dataset because the loader asks for one."""

    def __init__(self, dataset: RowSource, *, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, places: Sequence[tuple[int, int]]) -> list[tuple[int, Mapping[str, Tensor]]]:
        """The loader calls this with a whole batch, so the generators are put back once a batch."""
        with preserved_random_state(CPU):
            return [self._read(position, row) for position, row in places]

    def __getitem__(self, place: tuple[int, int]) -> tuple[int, Mapping[str, Tensor]]:
        return self.__getitems__([place])[0]

    def _read(self, position: int, row: int) -> tuple[int, Mapping[str, Tensor]]:
        seed_host_streams(derive_seed(self._seed, "row", position))
        return row, self._dataset[row]


def read_rows(dataset: RowSource, rows: Sequence[int]) -> dict[str, Tensor]:
    """The named rows as one batch, read here and now, each under a seed of its own; tensors are (len(rows), ...)."""
    return _collate(_SeededRows(dataset, seed=0).__getitems__([(row, row) for row in rows]))[1]


def _collate(rows: list[tuple[int, Mapping[str, Tensor]]]) -> tuple[list[int], dict[str, Tensor]]:
    names = [row for row, _ in rows]
    try:
        return names, default_collate([dict(tensors) for _, tensors in rows])
    except (RuntimeError, TypeError, KeyError) as error:
        shapes = "; ".join(
            f"row {row}: { {key: tuple(value.shape) for key, value in one.items()} }" for row, one in rows
        )
        allowed, fix = "rows of one shape, so that they make a batch", "pad or cut each row to train.seq_len"
        raise ConfigError([Problem("data.factory", shapes, allowed, fix)]) from error


def die_with_the_rank(_worker: int) -> None:
    """Ask Linux to kill this process, a loader say, with its rank: torch's own look at the parent comes every five
    seconds."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
