"""What happened to memory in a traced step: allocations and frees in their order, and where each belongs.

Filled by `recorder`, rewritten by `depth` and `affine`, read by `memory`, `allocator` and `roofline`. Plain data; sizes
are what was asked of the allocator, bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MOMENTS = ("data", "forward", "backward", "optimizer", "evaluation")
"""Parts of a step that an event can stand in."""
KINDS = ("parameters", "gradients", "optimizer_state", "activations", "gathered", "batch", "buckets", "temporary")
"""What an allocation is for. `gathered` is what sharding collects and scatters; `temporary` the rest."""
NO_BLOCK = -1


class Event(NamedTuple):
    """One allocation, or the free of one. A tuple, as a deep trace has a hundred thousand of them."""

    tensor: int
    """Which allocation: unique in the trace."""
    num_bytes: int
    """Positive for an allocation, negative for a free."""
    step: int
    """0: the first optimizer step, 1: the second (steady state), 2: evaluation."""
    moment: str
    block: int
    """Repeated block that was at work (forward, backward) or whose parameter this is about; NO_BLOCK for the rest."""
    stream: int
    operator: str


@dataclass(frozen=True)
class Operator:
    """One kernel of the second step: what it computes and moves. Views and empty tensors have none."""

    name: str
    kind: str
    """matmul, attention, elementwise."""
    num_flops: float
    num_bytes: int
    """Read and written."""
    dtype: str
    moment: str
    block: int


@dataclass(frozen=True)
class Collective:
    """One call of the process group in the second step; `num_bytes` is the size of the gathered or reduced tensor."""

    name: str
    num_bytes: int
    num_ranks: int
    moment: str
    block: int


@dataclass
class Trace:
    """Two steps and one evaluation of one rank."""

    initial: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Tensors that were there before the first step: number -> (kind, bytes)."""
    events: list[Event] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)
    """Kind of each allocation by number; what is not named is temporary."""
    initial_blocks: dict[int, int] = field(default_factory=dict)
    """Block of the tensors that were there before the first step."""
    operators: list[Operator] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    num_blocks: int = 0
    attention: list[str] = field(default_factory=list)
    """Attention kernels that were met, sorted."""
    num_graphs: int = 0
    """Graphs of a compiled model that backward goes through; 0 where nothing was compiled."""
    graph_breaks: list[str] = field(default_factory=list)
    """Why a compiled model is more than one graph, sorted."""
    not_compiled: str = ""
    """Why a run that compiles was traced as it is uncompiled."""

    @property
    def initial_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.initial.values())

    def live(self) -> Iterator[tuple[Event, int]]:
        """Each event with the bytes that are live after it."""
        live = self.initial_bytes
        for event in self.events:
            live += event.num_bytes
            yield event, live

    def kind_of(self, tensor: int) -> str:
        if tensor in self.initial:
            return self.initial[tensor][0]
        return self.kinds.get(tensor, "temporary")
