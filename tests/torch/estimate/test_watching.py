"""Which operators on lists of sharded parameters a trace runs on what a rank holds, without asking DTensor."""

import pytest
import torch

from pilotkit.estimate.watching import _is_elementwise_on_lists

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "is_elementwise"),
    [
        (aten._foreach_lerp_.Scalar, True),
        (aten._foreach_sqrt.default, True),
        (aten._fused_adamw_.default, True),
        # These need other ranks, or return another shape than they take.
        (aten._foreach_norm.Scalar, False),
        (aten._foreach_max.default, False),
        (aten._fused_adamw.default, False),
        (aten._fused_rms_norm.default, False),
        (aten.add.Tensor, False),
    ],
)
def test_only_what_needs_no_other_rank_is_run_on_the_share(operator, is_elementwise):
    assert _is_elementwise_on_lists(operator) is is_elementwise


@pytest.mark.parametrize("name", ["_foreach_mm", "_foreach_powsum"])
def test_products_and_sums_of_powers_are_asked_of_dtensor(name):
    packet = getattr(aten, name, None)
    for overload in packet.overloads() if packet is not None else ():  # torch before 2.13 has neither
        assert not _is_elementwise_on_lists(getattr(packet, overload))
