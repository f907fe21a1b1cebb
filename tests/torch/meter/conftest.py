"""A device that answers at once and works later, with its own clock in place of the real one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pilotkit.meter import count_step_flops


@pytest.fixture(scope="session", autouse=True)
def torch_loaded_its_lazy_parts() -> None:
    """torch sets a variable of its compiler's when it first takes operators apart; not a leak of the test that did."""
    weight = torch.ones(4, 4, requires_grad=True)
    count_step_flops(lambda: torch.nn.functional.layer_norm(weight @ weight, (4,)).sum())


class FakeDevice:
    """`launch` returns at once; the work is done when `synchronize` returns. Times are seconds of its own clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_synchronizations = 0
        self._busy_until = 0.0

    def launch(self, seconds: float) -> None:
        self._busy_until = max(self.now, self._busy_until) + seconds

    def host_work(self, seconds: float) -> None:
        self.now += seconds

    def synchronize(self) -> None:
        self.num_synchronizations += 1
        self.now = max(self.now, self._busy_until)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake = FakeDevice()
    for module in ("clock", "step_meter"):
        monkeypatch.setattr(f"pilotkit.meter.{module}.time", SimpleNamespace(perf_counter=lambda: fake.now))
    return fake
