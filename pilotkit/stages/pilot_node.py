"""What a further node does for a pilot on several (`cluster.node_rank` above 0): its share of each strategy,
or of the user's own script.

Run in place of stage `pilot`. The pilot's record is that of node 0; ours says how our share ended, and no plan reads
it.
"""

from __future__ import annotations

from pilotkit.errors import StageRefused
from pilotkit.launch.devices import refuse_process_count
from pilotkit.records.record import Metrics
from pilotkit.stages.run import Run, StageResult, not_ok


def run(run: Run) -> StageResult:
    """Meet the other nodes once for each strategy. One that fails does not keep us from the next, as on node 0."""
    pilot = run.config.pilot
    nproc, nodes = run.arithmetic.nproc_per_node, run.nodes()
    assert nodes is not None, "cluster.node_rank was checked"
    refusal = refuse_process_count(nproc, run.devices().visible, allow_idle_devices=pilot.allow_idle_devices)
    if refusal:
        raise StageRefused(refusal)
    run.console.line(f"  node {nodes.rank} of {nodes.count}: meeting the others at {nodes.host}:{nodes.port}")
    if pilot.script is not None:
        outcomes = [run.work_script(nproc=nproc, timeout_seconds=pilot.timeout_seconds, nodes=nodes)]
    else:
        outcomes = [
            run.work(
                f"pilot_{strategy}",
                nproc=nproc,
                torchrun=True,
                timeout_seconds=pilot.timeout_seconds,
                nodes=nodes.for_phase(number),
            )
            for number, strategy in enumerate(pilot.strategies)
        ]
    metrics = Metrics()
    metrics.add("given", num_nodes=nodes.count, node_rank=nodes.rank)
    failed = [outcome for outcome in outcomes if outcome.status != "ok"]
    return not_ok(run, failed[0]) if failed else StageResult("ok", metrics)
