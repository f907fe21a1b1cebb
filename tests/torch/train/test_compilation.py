"""What is compiled: the model as a whole or its blocks, each with the results of the model as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pilotkit.errors import ConfigError
from pilotkit.train import activation_checkpointing
from pilotkit.train.compilation import compile_model
from pilotkit.train.models import gpt


def _model() -> Any:
    torch.manual_seed(0)
    return gpt.build(
        vocab_size=32, num_layers=10, num_heads=2, hidden_size=16, max_seq_len=8, dropout=0.0, tie_embeddings=True
    )


# Dynamo looks at .grad of what a block is called with, and torch warns of that.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_one_graph_serves_all_blocks(mode: str) -> None:
    """More blocks than torch keeps versions of a function (eight): the ninth would run uncompiled."""
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    plain, model = _model(), _model()
    activation_checkpointing.apply(model, mode=mode, blocks=model.blocks)
    compile_model(model, scope="blocks", blocks=model.blocks, backend=backend)
    rows = torch.arange(16).reshape(2, 8)
    for found in (plain, model):
        found(rows, rows).loss.backward()
    assert len(graphs) == 1
    assert list(model.state_dict()) == list(plain.state_dict())
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)
    torch._dynamo.reset()


@pytest.mark.parametrize("blocks", [None, nn.ModuleList()])
def test_blocks_that_are_not_there_are_asked_for(blocks: nn.ModuleList | None) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_model(nn.Linear(2, 2), scope="blocks", blocks=blocks)
    (problem,) = caught.value.problems
    assert problem.key == "train.compile_scope"
    assert "model.blocks" in problem.fix
