"""Seeds and random states of one process: python, numpy, torch and the device. Called by worker, rows, checkpoint.

A state is a dict of tensors, ints and strings, so that a checkpoint loads it without unpickling anything else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pilotkit.config.seeds import derive_seed as derive_seed

State = dict[str, Any]


def seed_everything(seed: int, *, rank: int, deterministic: bool) -> None:
    """Seed python, numpy, torch and every device with `seed + rank`, and choose deterministic algorithms or not.

    Call it with rank 0 before the model is built, so that all ranks build the same weights, and with the own rank
    after it, so that dropout differs. On NVIDIA the process has to be started with CUBLAS_WORKSPACE_CONFIG set.
    """
    seed_host_streams(seed + rank)
    torch.manual_seed(seed + rank)
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic and torch.backends.cudnn.benchmark
    # Deterministic mode also fills every new tensor, which would be measured as part of the step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set through a module class


def seed_host_streams(seed: int) -> None:
    """Seed python, numpy and torch's CPU generator; devices keep theirs, so dropout on them is not reset."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def random_state(device: torch.device) -> State:
    """The states of all generators of this process; loads with `weights_only=True`."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached_gauss = np.random.get_state(legacy=True)
    state: State = {
        "python_version": version,
        "python_words": torch.tensor(words, dtype=torch.int64),
        "python_gauss": "" if gauss is None else gauss.hex(),
        "numpy_name": str(name),
        "numpy_keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
        "numpy_position": int(position),
        "numpy_has_gauss": int(has_gauss),
        "numpy_gauss": float(cached_gauss).hex(),
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device.type).get_rng_state(device)
    return state


def set_random_state(state: State, *, device: torch.device) -> None:
    """Bring back what `random_state` gave. A state without a device's part leaves the device's generator alone."""
    gauss = state["python_gauss"]
    words = tuple(state["python_words"].tolist())
    random.setstate((state["python_version"], words, float.fromhex(gauss) if gauss else None))
    np.random.set_state(
        (
            state["numpy_name"],
            state["numpy_keys"].numpy().astype(np.uint32),
            state["numpy_position"],
            state["numpy_has_gauss"],
            float.fromhex(state["numpy_gauss"]),
        )
    )
    torch.set_rng_state(state["torch"])
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device.type).set_rng_state(state["device"], device)


@contextmanager
def preserved_random_state(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside leaves no trace outside. Runs once a batch, so states stay in their owners' forms."""
    on_device = None if device.type == "cpu" else torch.get_device_module(device.type).get_rng_state(device)
    python, legacy_numpy, host = random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy_numpy)
        torch.set_rng_state(host)
        if on_device is not None:
            torch.get_device_module(device.type).set_rng_state(on_device, device)
