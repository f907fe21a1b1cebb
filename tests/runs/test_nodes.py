"""Two nodes without Slurm: the same command on each, in network namespaces that share nothing but one link."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
HOSTS = ("10.211.77.1", "10.211.77.2")
COMMAND = (
    *("stage=pilot", "parallelism.num_nodes=2", "hardware.device_count=1", f"cluster.rdzv_endpoint={HOSTS[0]}:29400"),
    *("pilot.strategies=[ddp]", "pilot.num_warmup_steps=1", "pilot.max_warmup_steps=1", "pilot.num_measured_steps=3"),
    *("train.micro_batch_size=1", "train.seq_len=32", "pilot.timeout_seconds=300"),
)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[list[str]]:
    """Two names; what runs in one reaches the other by 10.211.77.1 and .2 only, and no name server."""
    if shutil.which("ip", path=SEARCH) is None or os.geteuid() != 0:
        pytest.fail("needs root and ip: apt-get install iproute2", pytrace=False)
    names = [f"pilotkit-{os.getpid()}-{number}" for number in range(2)]
    links = [f"pk{os.getpid()}.{number}" for number in range(2)]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for name, link, host in zip(names, links, HOSTS, strict=True):
            _ip("-n", name, "address", "add", f"{host}/24", "dev", link)
            _ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, env={"PATH": SEARCH})


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, env={"PATH": SEARCH})


def _start(namespace: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    folder.mkdir()
    empty = folder / "resolv.conf"
    empty.touch()
    # A name server that cannot be reached from here would be waited for. The mount is the namespace's own.
    quiet = f'mount --bind "{empty}" /etc/resolv.conf && exec "$@"'
    command = ["ip", "netns", "exec", namespace, "sh", "-c", quiet, "sh", sys.executable, "-m", "pilotkit"]
    return subprocess.Popen(
        [*command, *COMMAND, *more],
        cwd=folder,
        env={**os.environ, "PATH": SEARCH, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _record(folder: Path, stage: str) -> dict[str, Any]:
    (path,) = folder.glob(f"outputs/*/{stage}/*/record.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_same_command_on_each_node(namespaces: list[str], tmp_path: Path) -> None:
    """Node 1 is there first and waits; the folders are not shared, and both have the result."""
    second = _start(namespaces[1], tmp_path / "b", "cluster.node_rank=1")
    first = _start(namespaces[0], tmp_path / "a")
    ended = [process.communicate(timeout=400)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], "\n".join(ended)
    record = _record(tmp_path / "a", "pilot")
    metrics = record["metrics"]
    assert (metrics["world_size"], metrics["num_nodes"]) == (2, 2)
    assert metrics["ddp_num_measured_steps"] == 3
    assert "ddp_scaling_efficiency" in metrics
    assert len(record["details"]["strategies"]["ddp"]["devices"]) == 2
    assert not any("network between nodes" in warning for warning in record["details"]["warnings"])
    other = _record(tmp_path / "b", "pilot_node")
    assert other["status"] == "ok"
    assert (other["metrics"]["node_rank"], other["metrics"]["num_nodes"]) == (1, 2)
    assert not list((tmp_path / "b").glob("outputs/*/pilot")), "no plan takes it for a pilot of its own"
    assert f"node 1 of 2: meeting the others at {HOSTS[0]}:29400" in ended[1]
