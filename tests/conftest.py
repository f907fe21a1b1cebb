"""What every test gets: markers by folder, a check that it left nothing behind, odd paths, and the command line.

`odd_tmp_path`      a temporary folder whose name has spaces, quotes, or letters beyond ASCII (one test run each)
`small_disk`        a file system of 1 MiB, to be filled
`read_only_folder`  a folder that takes no new file, not even from root
`pilotkit_cli`      runs `python -m pilotkit ...` in a temporary folder and ends all of its processes
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
MARKERS = {"torch": ["torch"], "runs": ["slow"], "browser": ["slow"], "slurm": ["slow"], "gpu": ["gpu"]}
TOGETHER = ("tests/slurm/", "tests/torch/train/")
"""Folders whose files share what is dear: one cluster, one run of all scenarios on two ranks."""
TOKEN = "PILOTKIT_TEST_TOKEN"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Side by side, a file's tests stay together and in order, and so do some folders': what they share is made once.

    Not by marks and `--dist loadgroup`: xdist 3.8 writes groups into a field that pytest 9.2 does not read.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next((folder for folder in TOGETHER if path.startswith(folder)), path)

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by the folder below tests/; a GPU test is skipped unless PILOTKIT_GPU=1."""
    for item in items:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        for marker in MARKERS.get(folder, []):
            item.add_marker(marker)
        if folder == "gpu" and os.environ.get("PILOTKIT_GPU") != "1":
            item.add_marker(pytest.mark.skip(reason="needs an accelerator: set PILOTKIT_GPU=1"))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaks an environment variable, the working directory, a child process or a process group."""
    environment, folder, children = dict(os.environ), os.getcwd(), _children()
    yield
    leaks = _environment_leaks(environment)
    os.environ.clear()
    os.environ.update(environment)
    if os.getcwd() != folder:
        leaks.append(f"working directory {os.getcwd()}")
        os.chdir(folder)
    leaks += _process_group_leaks()
    leaks += [f"child process {text}" for text in _end_children(children)]
    if leaks:
        pytest.fail("the test left behind: " + "; ".join(leaks), pytrace=False)


@pytest.fixture(
    params=["two  spaces", 'it\'s "quoted"', "größe-模型", "a=b,[c]{d}$e"],
    ids=["spaces", "quotes", "unicode", "special"],
)
def odd_tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An empty folder with a name that breaks careless quoting."""
    path = tmp_path / str(request.param)
    path.mkdir()
    return path


@dataclass(frozen=True)
class CliResult:
    """How one command line ended."""

    returncode: int
    stdout: str
    stderr: str
    wall_seconds: float


PilotkitCli = Callable[..., CliResult]


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on loopback with this handler, in a thread that ends with the context; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def pilotkit_cli(tmp_path: Path) -> Iterator[PilotkitCli]:
    """`pilotkit_cli(*arguments, cwd=tmp_path, env={}, timeout=240)` runs the checkout's command line to its end.

    Fails the test when the command takes longer than `timeout` seconds, or when one of its processes outlives it:
    torchrun's workers lead sessions of their own, so they are found by a token in their environment.
    """
    token = secrets.token_hex(8)

    def run(
        *arguments: str, cwd: Path = tmp_path, env: Mapping[str, str] | None = None, timeout: float = 240
    ) -> CliResult:
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pilotkit", *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **(env or {}), TOKEN: token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _end_with_token(token)
            stdout, stderr = process.communicate()
            pytest.fail(f"pilotkit {' '.join(arguments)} took over {timeout} s\n{stdout}\n{stderr}", pytrace=False)
        left = _end_with_token(token)
        assert not left, f"pilotkit {' '.join(arguments)} left processes behind: {left}"
        return CliResult(process.returncode, stdout, stderr, time.monotonic() - start)

    yield run
    _end_with_token(token)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of its own. Skipped, and named in the summary, where mounting is not allowed."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"NOT TESTED, a full disk needs leave to mount a tmpfs: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def read_only_folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that takes no new file: by permission bits, or for root (who passes those) by a read-only mount."""
    if os.geteuid() == 0:
        folder: Path = request.getfixturevalue("small_disk")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder
        return
    folder = tmp_path / "read only"
    folder.mkdir(mode=0o555)
    yield folder
    folder.chmod(0o755)


def _environment_leaks(before: Mapping[str, str]) -> list[str]:
    names = (before.keys() | os.environ.keys()) - {"PYTEST_CURRENT_TEST"}
    return [f"environment variable {name}" for name in sorted(names) if before.get(name) != os.environ.get(name)]


def _process_group_leaks() -> list[str]:
    """A process group of torch.distributed; torch is not imported to find out."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    distributed.destroy_process_group()
    return ["a torch.distributed process group"]


def _children() -> set[int]:
    """Process ids of our direct children. Read from /proc: asking psutil takes milliseconds, for every test twice."""
    files = list(Path("/proc/self/task").glob("*/children"))
    if not files:  # a kernel without CONFIG_PROC_CHILDREN
        return {child.pid for child in psutil.Process().children()}
    children: set[int] = set()
    for file in files:
        with contextlib.suppress(OSError):  # a thread that ended meanwhile has none
            children.update(map(int, file.read_text(encoding="ascii").split()))
    return children


def _end_children(before: set[int]) -> list[str]:
    """End what was started since and still runs after a second of grace; multiprocessing's own helper may stay."""
    started = _children() - before
    if not started:
        return []
    gc.collect()  # a loader's workers end with their iterator
    processes = []
    for pid in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            child = psutil.Process(pid)
            processes += [child, *child.children(recursive=True)]
    described = []
    for process in psutil.wait_procs(processes, timeout=1)[1]:
        try:
            command = " ".join(process.cmdline())
            if "multiprocessing.resource_tracker" in command:
                continue
            process.kill()
            process.wait()
        except psutil.NoSuchProcess:
            continue
        described.append(f"{process.pid} ({command})")
    return described


def _end_with_token(token: str) -> list[str]:
    """Kill every process whose environment carries the token; returns their command lines."""
    ended = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"{TOKEN}={token}".encode() not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            ended.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
            os.kill(int(folder.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return ended
