"""Which results of a graph its fused kernels write to memory, and what they move. Modelled: no kernel is made.

Called by `compiled` for each graph of a compiled model. The rule is Inductor's, simplified: element-wise operators and
reductions that follow each other, with no matrix product, attention or other kernel of its own between them, become one
kernel. A result of theirs is written where something else reads it: such a kernel, a later group, or what comes after
the graph. A later group computes a cheap result again instead: one of few buffers, without a reduction.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import fx
from torch._functorch.partitioners import get_default_op_list
from torch.fx.node import Node

from pilotkit.estimate.costs import moved_bytes
from pilotkit.estimate.watching import tensors_of

# torch._inductor.config.realize_reads_threshold of torch 2.13: a result of more buffers is written once it is shared.
MAX_READS = 4


@dataclass(frozen=True)
class Group:
    """One fused kernel."""

    num_bytes: int
    """Read and written."""
    dtype: str


@dataclass(frozen=True)
class Plan:
    """What becomes of each node of a graph; an empty one fuses nothing."""

    hidden: frozenset[Node] = frozenset()
    """Results that are never in memory, and views of them."""
    members: frozenset[Node] = frozenset()
    """Nodes of fused kernels whose results are."""
    last: dict[Node, Group] = field(default_factory=dict)
    """The kernels, each by the last of its nodes."""
    frees: dict[Node, list[Node]] | None = None
    """What is no longer read once a node has run; None: as soon as the last node that reads it has. A kernel reads all
    of its inputs until it ends."""


def plan_of(graph: fx.Graph) -> Plan:
    """Group the fusible nodes of a graph."""
    return _Planner(graph).plan()


class _Planner:
    def __init__(self, graph: fx.Graph) -> None:
        kinds: Any = get_default_op_list()
        self._graph = graph
        self._nodes = [node for node in graph.nodes if node.op == "call_function"]
        self._place = {node: index for index, node in enumerate(graph.nodes)}
        self._is_view = {node for node in self._nodes if kinds.is_view(node) or node.target is operator.getitem}
        self._fusible = {
            node for node in self._nodes if (kinds.is_fusible(node) or _is_drawn(node)) and node not in self._is_view
        }
        self._stretch: dict[Node, int] = {}
        """Kernels of their own that have run before a node, in the order of the graph."""
        count = 0
        for node in self._nodes:
            self._stretch[node] = count
            count += node not in self._is_view and node not in self._fusible
        self._hidden: dict[Node, set[Node]] = {}
        """What each result that is not written is computed from: buffers."""
        self._reduces: set[Node] = set()
        self._parents: dict[Node, Node] = {}

    def plan(self) -> Plan:
        for node in self._nodes:
            if node in self._fusible:
                self._place_one(node)
        stored = frozenset(self._fusible - self._hidden.keys())
        views = {node for node in self._nodes if node in self._is_view and self._root(node) in self._hidden}
        groups: dict[Node, list[Node]] = {}
        for node in self._nodes:
            if node in self._fusible:
                groups.setdefault(self._first(node), []).append(node)
        last = {members[-1]: self._group(members, stored) for members in groups.values()}
        ends = {node: members[-1] for members in groups.values() for node in members}
        return Plan(frozenset(self._hidden.keys() | views), stored, last, self._frees(ends))

    def _place_one(self, node: Node) -> None:
        """Decide where a result lives; those before it are decided."""
        roots = [self._root(source) for source in node.all_input_nodes]
        read = set().union(*(self._hidden.get(root, {root}) for root in roots))
        if _is_reduction(node) or any(root in self._reduces for root in roots if root in self._hidden):
            self._reduces.add(node)
        for root in roots:
            if root in self._fusible and self._stretch[root] == self._stretch[node]:
                self._parents[self._first(node)] = self._first(root)
        is_cheap = len(read) <= MAX_READS and node not in self._reduces
        readers = list(self._readers(node))
        if all(
            reader in self._fusible and (is_cheap or self._stretch[reader] == self._stretch[node]) for reader in readers
        ):
            self._hidden[node] = read

    def _frees(self, ends: dict[Node, Node]) -> dict[Node, list[Node]]:
        """A kernel reads its inputs until it ends, and so does every kernel that computes an unwritten result again."""
        until: dict[Node, Node] = {}
        for node in reversed(self._graph.nodes):
            used = [ends.get(user, user) for user in node.users]
            used += [
                until[user] for user in node.users if user in until and (user in self._hidden or user in self._is_view)
            ]
            if used:
                until[node] = max(used, key=self._place.__getitem__)
        found: dict[Node, list[Node]] = {}
        for node, end in until.items():
            found.setdefault(end, []).append(node)
        return found

    def _readers(self, node: Node) -> Iterator[Node]:
        for user in node.users:
            if user in self._is_view:
                yield from self._readers(user)
            else:
                yield user

    def _root(self, node: Node) -> Node:
        while node in self._is_view:
            node = node.all_input_nodes[0]
        return node

    def _first(self, node: Node) -> Node:
        while node in self._parents and self._parents[node] is not node:
            node = self._parents[node]
        return node

    def _group(self, members: list[Node], stored: frozenset[Node]) -> Group:
        """Bytes of the buffers that it reads and writes, each once."""
        own = set(members)
        roots = {self._root(source) for node in members for source in node.all_input_nodes}
        read = set().union(*(self._hidden.get(root, {root}) for root in roots)) - own
        written = [node for node in members if node in stored]
        values = [value for node in (*read, *written) for value in tensors_of(node.meta.get("val"))]
        dtypes = [value.dtype for node in (*written, *members) for value in tensors_of(node.meta.get("val"))]
        return Group(sum(map(moved_bytes, values)), str(dtypes[0]).removeprefix("torch.") if dtypes else "none")


def _is_reduction(node: Node) -> bool:
    """Whether a result has fewer elements than what it is computed from."""
    sizes = [sum(value.numel() for value in tensors_of(source.meta.get("val"))) for source in node.all_input_nodes]
    return bool(sizes) and max(sizes) > max((value.numel() for value in tensors_of(node.meta.get("val"))), default=0)


def _is_drawn(node: Node) -> bool:
    """Inductor's own operators for random numbers, which stand inside a kernel; a seed does not."""
    return str(node.target).startswith(("prims.inductor_random", "prims.inductor_lookup_seed"))
