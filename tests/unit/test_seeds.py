"""The seeds that a lock lists (case R62): as many streams as there are readers, the same again from the same seed."""

from __future__ import annotations

from pilotkit.config.seeds import derive_seed, derived_seeds


def test_every_stream_has_a_seed_of_its_own() -> None:
    found = derived_seeds(7, world_size=2, micro_batch_size=4)
    assert found["ranks"] == {"rank 0": 7, "rank 1": 8}
    assert found["epoch_orders"]["epoch 1"] == derive_seed(7, "order", 1)
    assert found["first_rows"] == {"rank 0": derive_seed(7, "row", 0), "rank 1": derive_seed(7, "row", 4)}
    streams = [*found["epoch_orders"].values(), *found["first_rows"].values()]
    assert len(set(streams)) == 4
    assert found == derived_seeds(7, world_size=2, micro_batch_size=4)
    assert found != derived_seeds(8, world_size=2, micro_batch_size=4)
