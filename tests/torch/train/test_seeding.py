"""Random states go out and come back, and seeds differ by purpose and rank."""

import io
import random
from contextlib import suppress

import numpy as np
import pytest
import torch

from pilotkit.train.seeding import (
    derive_seed,
    preserved_random_state,
    random_state,
    seed_everything,
    set_random_state,
)

CPU = torch.device("cpu")


def draw():
    values = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), float(torch.rand(()))]
    return [*values, float(torch.randn(()))]


def test_state_comes_back_through_weights_only():
    seed_everything(3, rank=0, deterministic=False)
    draw()  # leaves half a Gaussian pair in python's and numpy's generators
    stream = io.BytesIO()
    torch.save(random_state(CPU), stream)
    expected = draw(), draw()
    stream.seek(0)
    set_random_state(torch.load(stream, weights_only=True), device=CPU)
    assert (draw(), draw()) == expected


def test_preserved_random_state_holds_after_an_error():
    seed_everything(3, rank=0, deterministic=False)
    expected = draw()
    seed_everything(3, rank=0, deterministic=False)
    with suppress(KeyError), preserved_random_state(CPU):
        draw()
        raise KeyError
    assert draw() == expected


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_algorithms_are_set_both_ways(deterministic):
    torch.use_deterministic_algorithms(not deterministic)
    seed_everything(0, rank=0, deterministic=deterministic)
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_ranks_draw_differently_and_the_same_again():
    def first_draw(rank):
        seed_everything(5, rank=rank, deterministic=False)
        return draw()

    assert len({tuple(first_draw(rank)) for rank in range(4)}) == 4
    assert first_draw(2) == first_draw(2)


def test_derived_seeds_differ_by_purpose_and_fit_numpy():
    seeds = {derive_seed(seed, purpose, part) for seed in (0, 1) for purpose in ("row", "order") for part in range(50)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert derive_seed(0, "order", 1) == derive_seed(0, "order", 1)
