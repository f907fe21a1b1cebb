"""`python -m pilotkit.worker RUN_DIR PHASE`, alone or under torchrun: one phase of one run.

In order, on every rank:
    1. watch the driver, so that no rank outlives it            (before torch is imported)
    2. read RUN_DIR/run.yaml
    3. open the device, join the process group, set the limits  (`pilotkit.worker.session`)
    4. run the phase                                            (`pilotkit.worker.phases`)
    5. rank 0 writes the phase's result.json; a rank that failed writes error-<rank>.json and exits with 1

`--describe-devices` prints what torch sees on this machine as one line of JSON. `--standby` imports first and is told
RUN_DIR and PHASE on its standard input. Never parses overrides.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pilotkit.records.run_dir import RunDir
from pilotkit.worker import failure, watch


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when the phase has left its result."""
    if list(argv) == ["--describe-devices"]:
        from pilotkit.device import describe_devices

        print(json.dumps(describe_devices()))  # noqa: T201 - the driver reads it from here
        return 0
    if list(argv) == ["--standby"]:
        watch.die_with_the_driver()
        from pilotkit.worker import standby

        return _work(standby.wait())
    if len(argv) != 2:
        print("usage: python -m pilotkit.worker RUN_DIR PHASE", file=sys.stderr)  # noqa: T201
        return 2
    watch.die_with_the_driver()
    return _work(argv)


def _work(argv: Sequence[str]) -> int:
    faulthandler.enable()
    run_dir, phase = RunDir(Path(argv[0])), argv[1]
    rank = int(os.environ.get("RANK", "0"))
    try:
        # Imported here: everything above must work, and be quick, when torch does not even import.
        from pilotkit.worker.phases import run_phase

        run_phase(run_dir, phase=phase, rank=rank)
    except BaseException as error:
        failure.write(run_dir.phase(phase), rank=rank, error=error)
        return 1
    return 0


if __name__ == "__main__":
    # Not sys.exit: a process group or loader that is still open must not keep a failed rank from ending.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
