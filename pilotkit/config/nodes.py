"""Where the nodes of one run meet, as the options `cluster.rdzv_endpoint` and `cluster.node_rank` say it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pilotkit.config.schema import PilotConfig
from pilotkit.errors import Problem

# A name or an address, an IPv6 address in brackets.
ENDPOINT = re.compile(r"(?P<host>[^\s:\[\]]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5})")
# One port for each strategy, from this one on.
HIGHEST_PORT = 65535


def parse_endpoint(text: str) -> tuple[str, int] | None:
    """`10.0.0.1:29400` -> ("10.0.0.1", 29400); None when it is no endpoint."""
    match = ENDPOINT.fullmatch(text)
    return None if match is None else (match["host"].strip("[]"), int(match["port"]))


def check_nodes(config: PilotConfig) -> Iterator[Problem]:
    """What is wrong with the place where the nodes meet, and with the number of this one."""
    cluster, num_nodes = config.cluster, config.parallelism.num_nodes
    endpoint, rank = cluster.rdzv_endpoint, cluster.node_rank
    both = ("parallelism.num_nodes", "cluster.rdzv_endpoint", "cluster.node_rank")
    if endpoint is None:
        if rank:
            fix = "give every node the same cluster.rdzv_endpoint=HOST:PORT, HOST being the first one"
            yield Problem("cluster.node_rank", rank, "0 without cluster.rdzv_endpoint", fix, both)
        return
    found = parse_endpoint(endpoint)
    last = HIGHEST_PORT - len(config.pilot.strategies)
    if found is None or not 1024 <= found[1] <= last:
        allowed = f"HOST:PORT, with a port from 1024 to {last}"
        yield Problem("cluster.rdzv_endpoint", endpoint, allowed, "for example cluster.rdzv_endpoint=10.0.0.1:29400")
    if config.stage != "pilot":
        fix = "take stage=pilot, or leave it out: the other stages run on one node"
        yield Problem("cluster.rdzv_endpoint", endpoint, "nothing but with stage=pilot", fix, ("stage",))
    if num_nodes == 1:
        yield Problem(
            "cluster.rdzv_endpoint", endpoint, "nothing on one node", "set parallelism.num_nodes, or leave it out", both
        )
    elif rank >= num_nodes:
        allowed = f"0 to {num_nodes - 1}, as parallelism.num_nodes={num_nodes}"
        yield Problem("cluster.node_rank", rank, allowed, "count the nodes from 0; 0 is the host of the endpoint", both)
