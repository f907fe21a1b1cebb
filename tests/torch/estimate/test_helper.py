"""The second process of an estimate: what it traces is what this one would, and its death costs nothing but time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pilotkit

# In a process of its own: a fork has to come before the first backward pass, which other tests have had.
SCRIPT = """
import dataclasses, os, signal, sys
from functools import partial
sys.path.insert(0, sys.argv[1])
import scenarios
from pilotkit.estimate.helper import Helper
from pilotkit.estimate.model import FakeModel
from pilotkit.estimate.predict import Estimator
from pilotkit.estimate.trace import trace_fake

build = partial(scenarios.build_llama, num_layers=6)
workload = dataclasses.replace(scenarios.LLAMA, build_model=build, strategy="fsdp", dp_shard=8, device_type="cuda")
source = FakeModel(workload)
shape = {"micro_batch_size": 2, "seq_len": 64, "num_blocks": 3, "counts_operators": True}
with Helper(source) as helper:
    future = helper.trace(workload, **shape)
    assert future.exception() is None, future.exception()
    assert future.result() == trace_fake(source, **shape)
    both = Estimator(workload, source=source, helper=helper).predict(micro_batch_size=2, seq_len=64)
    os.kill(helper.submit(os.getpid).result(), signal.SIGKILL)
    assert helper.submit(os.getpid).exception() is not None
    alone = Estimator(workload, source=source, helper=helper).predict(micro_batch_size=2, seq_len=64)
    assert both == alone
print("done")
"""


def test_helper_traces_the_same_and_may_die() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(pilotkit.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:pilotkit", "-c", SCRIPT, str(Path(__file__).parent)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip() == "done"
