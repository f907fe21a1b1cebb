"""Which ModuleList is taken for the repeated blocks."""

import pytest
from torch import nn

from pilotkit.errors import ConfigError
from pilotkit.train.blocks import find_blocks


@pytest.fixture
def model():
    root = nn.Module()
    root.short = nn.ModuleList([nn.Linear(2, 2)])
    root.mixed = nn.ModuleList([nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU()])
    root.inner = nn.Module()
    root.inner.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    root.empty = nn.ModuleList()
    return root


def test_longest_list_of_one_type_is_found(model):
    assert find_blocks(model) is model.inner.layers


def test_experts_of_one_layer_are_no_blocks():
    """Two layers of four experts each: a layer's list is longer, and holds less than half."""
    layers = [nn.ModuleDict({"norm": nn.LayerNorm(2), "experts": nn.ModuleList()}) for _ in range(2)]
    for layer in layers:
        layer["experts"].extend(nn.Linear(2, 2) for _ in range(4))
    model = nn.Module()
    model.layers = nn.ModuleList(layers)
    assert find_blocks(model) is model.layers


def test_path_overrides(model):
    assert find_blocks(model, path="mixed") is model.mixed


def test_model_without_blocks_has_none():
    assert find_blocks(nn.Linear(2, 2)) is None


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("inner.blocks", "nothing of that name"),
        ("inner", "a Module of other kind or empty"),
        ("empty", "a ModuleList of other kind or empty"),
    ],
)
def test_wrong_path_is_refused(path, found, model):
    with pytest.raises(ConfigError) as caught:
        find_blocks(model, path=path)
    assert str(caught.value) == (
        f"1 problem in the configuration; nothing was started.\n1. model.blocks={path}\n"
        "    allowed: the path of a filled nn.ModuleList: short, mixed, inner.layers\n"
        f"    to mend: there is {found}; name one of these, or leave it null"
    )
