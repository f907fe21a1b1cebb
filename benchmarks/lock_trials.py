"""Plant drifts one at a time: the gate has to name each. Repeat what changes nothing: it has to be quiet.

    python benchmarks/lock_trials.py

Works on the project of `lock_world.py`, with 300 installed distributions.
Prints one row a trial; exits 1 when a drift is missed, a clean repeat alarms, or a look or a whole command takes over
1.5 s of processor time (user and system, of the processes that it waited for, too: what a busy neighbour hardly
changes). The clock's time stands beside it. Used by the tests, which run the same trials.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from lock_world import MODELS, World, install, processor_seconds, source, wheel, world

import pilotkit
from pilotkit.provenance.drift import compare_locks
from pilotkit.stages import gate

NUM_COMMANDS = 9
LIMIT_SECONDS = 1.5
MOVED = "b2" * 20
BASE = ("model=custom", "model.factory=mine.models:build", "data=text_folder", "data.path=rows", "name=trials")
HUB = ("model=hf", "model.name=org/net", "data=text_folder", "data.path=rows", "name=trials")
LOCAL = ("model=hf", "model.name=./weights", "data=text_folder", "data.path=rows", "name=trials")
IMAGE = f"image=org/x@sha256:{'0' * 64}"


Plant = Callable[[World], "contextlib.AbstractContextManager[Any]"]


@dataclass(frozen=True)
class Trial:
    """One planted drift: `field` has to be named (others that follow from it may be, too)."""

    name: str
    field: str
    plant: Plant | None = None
    base: tuple[str, ...] = BASE
    more: tuple[str, ...] = ()


def _writes(path: str, text: str, *, keep_times: bool = False) -> Plant:
    @contextlib.contextmanager
    def plant(made: World) -> Iterator[None]:
        file = made.folder / path
        before = file.read_bytes() if file.exists() else None
        status = file.stat() if before is not None else None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        if keep_times and status is not None:
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        yield
        file.unlink() if before is None else file.write_bytes(before)

    return plant


def _moves(path: str, to: str) -> Plant:
    @contextlib.contextmanager
    def plant(made: World) -> Iterator[None]:
        shutil.move(made.folder / path, made.folder / to)
        yield
        shutil.move(made.folder / to, made.folder / path)

    return plant


def _replaces(name: str, version: str | None, direct: Mapping[str, Any] | None = None) -> Plant:
    """Version 1.0, if there is one, makes room for `version`; None takes it away."""

    @contextlib.contextmanager
    def plant(made: World) -> Iterator[None]:
        old, aside = made.site / f"{name.replace('-', '_')}-1.0.dist-info", made.folder / "aside"
        was_there = old.exists()
        if was_there:
            shutil.move(old, aside)
        folder = install(made, name, version, direct) if version else None
        yield
        if folder is not None:
            shutil.rmtree(folder)
        if was_there:
            shutil.move(aside, old)

    return plant


def _sets(name: str, value: str) -> Plant:
    return lambda made: mock.patch.dict(os.environ, {name: value.format(folder=made.folder)})


def _commits(path: str, text: str) -> Plant:
    @contextlib.contextmanager
    def plant(made: World) -> Iterator[None]:
        with _writes(path, text)(made):
            made.git("commit", "--quiet", "--all", "--message", "more")
            yield
        made.git("reset", "--quiet", "--hard", "HEAD~1")

    return plant


def _patches(target: object, name: str, value: Any) -> Plant:
    return lambda made: mock.patch.object(target, name, value)


@contextlib.contextmanager
def _executable(made: World) -> Iterator[None]:
    (made.project / "mine/models.py").chmod(0o755)
    yield
    (made.project / "mine/models.py").chmod(0o644)


def _machine(**changes: Any) -> Callable[..., dict[str, Any]]:
    return lambda device_type: {"driver": "570.1", "names": ["H100", "H100"], "cores": 8, **changes}


OTHER_TORCH = dict.fromkeys(("version", "cuda", "hip", "git_version", "debug"), "9.9")
H100 = ("hardware=h100", "parallelism.nproc_per_node=2", *BASE)

TRIALS = (
    Trial("a package bump", "packages.package-007", _replaces("package-007", "1.1")),
    Trial("a package more", "packages.extra", _replaces("extra", "1.0")),
    Trial("a package less", "packages.package-008", _replaces("package-008", None)),
    Trial("a rebuilt wheel", "packages.wheel", _replaces("wheel", "1.0", wheel("2" * 64))),
    Trial("another source commit", "packages.source", _replaces("source", "1.0", source(MOVED))),
    Trial("not from the index any more", "packages.package-009", _replaces("package-009", "1.0", source(MOVED))),
    Trial("code of an editable install", "packages.tool", _writes("editable/tool.py", "x = 2\n")),
    Trial("a file more in an editable install", "packages.tool", _writes("editable/more.py", "y = 2\n")),
    Trial("a moved branch", "model.revision", _writes("hub/models--org--net/refs/main", MOVED), base=HUB),
    Trial("another revision", "model.revision", base=HUB, more=(f"model.revision={MOVED}",)),
    Trial("a moved tokenizer", "model.parts.org/tokens.revision", _writes("hub/models--org--tokens/refs/main", MOVED),
          base=(*HUB, "+model.kwargs.tokenizer=org/tokens")),
    Trial("changed weights in a folder", "model.revision",
          _writes("project/weights/model.safetensors", "1" * 64), base=LOCAL),
    Trial("a changed file of the data", "data.revision", _writes("project/rows/a.txt", "one raw\n" * 200)),
    Trial("the same size and date", "data.revision", _writes("project/rows/a.txt", "one rag\n" * 200, keep_times=True)),
    Trial("a file more in the data", "data.revision", _writes("project/rows/c.txt", "three\n")),
    Trial("a renamed file of the data", "data.revision", _moves("project/rows/a.txt", "project/rows/z.txt")),
    Trial("a file less in the data", "data.revision", _moves("project/rows/a.txt", "a.txt")),
    Trial("code of the model", "model.revision", _writes("project/mine/models.py", MODELS + "# more\n")),
    Trial("code that the model imports", "model.revision", _writes("project/mine/layers.py", "class Layer: pass\n")),
    Trial("a dirty tree", "git.state", _writes("project/README.md", "other words\n")),
    Trial("an untracked file", "git.diff_digest", _writes("project/new.py", "x = 1\n")),
    Trial("another commit", "git.tree", _commits("project/README.md", "other words\n")),
    Trial("a file made executable", "git.diff_digest", _executable),
    Trial("another seed", "config.train.seed", more=("train.seed=1",)),
    Trial("another sequence length", "config.train.seq_len", more=("train.seq_len=64",)),
    Trial("another micro-batch", "config.train.micro_batch_size", more=("train.micro_batch_size=2",)),
    Trial("another precision", "config.precision.compute_dtype", more=("precision=bf16_mixed",)),
    Trial("another learning rate", "config.optimizer.lr", more=("optimizer.lr=0.5",)),
    Trial("another schedule", "config.scheduler.name", more=("scheduler=linear",)),
    Trial("another strategy", "config.parallelism.strategy", more=("parallelism=fsdp",)),
    Trial("recomputation", "config.activation_checkpointing.mode", more=("activation_checkpointing=full",)),
    Trial("more loader processes", "config.data.num_workers", more=("data.num_workers=2",)),
    Trial("not deterministic", "config.train.deterministic", more=("train.deterministic=false",)),
    Trial("another accelerator", "config.hardware.name", base=H100, more=("hardware=h200",)),
    Trial("another image", "container.digest", base=(*BASE, IMAGE), more=(f"image=org/x@sha256:{'1' * 64}",)),
    Trial("a tag instead of a digest", "container.digest", base=(*BASE, IMAGE), more=("image=org/x:1.2",)),
    Trial("an image named by the variable", "container.digest", _sets("PILOTKIT_IMAGE", f"org/x@sha256:{'2' * 64}")),
    Trial("a rebuilt image file", "container.digest",
          _writes("image.sif", "rebuilt"), base=(*BASE, "image=../image.sif")),
    Trial("another visible device", "environment.CUDA_VISIBLE_DEVICES", _sets("CUDA_VISIBLE_DEVICES", "1")),
    Trial("another collective algorithm", "environment.NCCL_ALGO", _sets("NCCL_ALGO", "Tree")),
    Trial("other threads", "environment.OMP_NUM_THREADS", _sets("OMP_NUM_THREADS", "1")),
    Trial("another cuBLAS workspace", "environment.CUBLAS_WORKSPACE_CONFIG", _sets("CUBLAS_WORKSPACE_CONFIG", ":16:8")),
    Trial("another allocator", "environment.PYTORCH_CUDA_ALLOC_CONF",
          _sets("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")),
    Trial("TF32 from outside", "environment.NVIDIA_TF32_OVERRIDE", _sets("NVIDIA_TF32_OVERRIDE", "1")),
    Trial("a preloaded library", "environment.LD_PRELOAD", _sets("LD_PRELOAD", "")),
    Trial("another torch build", "torch.cuda", _patches(gate, "torch_build", lambda: OTHER_TORCH)),
    Trial("another Python", "python", _patches(platform, "python_version", lambda: "3.99.0")),
    Trial("another pilotkit", "pilotkit", _patches(pilotkit, "__version__", "9.9")),
    Trial("another driver", "machine.driver", _patches(gate, "read_machine", _machine(driver="580.2")), base=H100),
    Trial("another card", "machine.names", _patches(gate, "read_machine", _machine(names=["H100", "H200"])), base=H100),
    Trial("a card less", "machine.names", _patches(gate, "read_machine", _machine(names=["H100"])), base=H100),
    Trial("fewer cores", "machine.cores", _patches(gate, "read_machine", _machine(cores=4)), base=H100),
)  # fmt: skip


def run_trial(made: World, trial: Trial) -> list[str]:
    """The fields that the gate names after the drift was planted."""
    with mock.patch.object(gate, "read_machine", _machine()) if trial.base == H100 else contextlib.nullcontext():
        before = made.lock(*trial.base)
        with trial.plant(made) if trial.plant else contextlib.nullcontext():
            after = made.lock(*trial.base, *trial.more)
    return [item.field for item in compare_locks(before, after).drift]


def _touch(made: World) -> Path:
    for path in made.project.rglob("*"):
        os.utime(path)
    return made.project


def _write_outputs(made: World) -> Path:
    for name in ("outputs/x/measure/1/record.json", "mine/__pycache__/models.cpython-311.pyc"):
        (made.project / name).parent.mkdir(parents=True, exist_ok=True)
        (made.project / name).write_text("{}", encoding="utf-8")
    return made.project


def _other_variables(made: World) -> Path:
    os.environ["HF_TOKEN"], os.environ["SLURM_JOB_ID"] = "hf_secret", "17"
    return made.project


def _other_commit_of_the_same_files(made: World) -> Path:
    made.git("commit", "--quiet", "--amend", "--message", "another word for it")
    return made.project


def _another_checkout(made: World) -> Path:
    copy = made.folder / f"copy-{len(list(made.folder.iterdir()))}"
    made.git("clone", "--quiet", str(made.project), str(copy))
    return copy


HARMLESS: tuple[Callable[[World], Path], ...] = (
    lambda made: made.project,
    _touch,
    _write_outputs,
    _other_variables,
    _other_commit_of_the_same_files,
    _another_checkout,
)


def run_repeat(made: World, number: int, *, before: Mapping[str, Any]) -> list[str]:
    """The fields that the gate names although nothing changed that matters; has to be empty."""
    with mock.patch.dict(os.environ):
        start = HARMLESS[number % len(HARMLESS)](made)
        after = made.lock(*BASE, launch_dir=start)
    return [str(item) for item in compare_locks(before, after).drift]


def whole_command(made: World, *overrides: str) -> tuple[float, float]:
    """Seconds of processor time, and on the clock, of `pilotkit stage=lock`, its whole process included."""
    paths = [str(Path(pilotkit.__file__).parents[1]), str(made.site)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pilotkit", "stage=lock", "lock.path=lock.pilotkit.yaml", *BASE, *overrides]
    began, before = time.perf_counter(), processor_seconds()
    done = subprocess.run(command, cwd=made.project, env=environment, capture_output=True, text=True, check=False)
    wall, processor = time.perf_counter() - began, processor_seconds() - before
    assert done.returncode == 0, done.stderr
    return processor, wall


def main() -> int:
    """Every trial, then twenty clean repeats, then how long a lock took."""
    from machine import describe

    print(describe("hydra-core"))
    missed = 0
    with world() as made:
        for trial in TRIALS:
            fields = run_trial(made, trial)
            named = trial.field in fields
            missed += not named
            print(f"{'named ' if named else 'MISSED'}  {trial.name:38} {', '.join(fields)}")
        before = made.lock(*BASE)
        alarms = [alarm for number in range(20) for alarm in run_repeat(made, number, before=before)]
        num_packages = len(before["packages"])
        slowest, median = max(made.processor_seconds), statistics.median(made.processor_seconds)
        wall = statistics.median(made.seconds)
        count = len(made.seconds)
        whole_command(made)  # compiles, and fills the caches
        commands = {
            mode: [whole_command(made, f"lock.mode={mode}") for _ in range(NUM_COMMANDS)] for mode in ("write", "check")
        }
    print(f"{len(TRIALS)} drifts planted, {missed} missed; 20 clean repeats, {len(alarms)} false alarms {alarms[:3]}")
    verdict = "within" if slowest < LIMIT_SECONDS else "OVER"
    print(
        f"a look at everything with {num_packages} packages, which is what a lock and what a check costs: "
        f"median {median:.2f} s of processor time, slowest of {count} {slowest:.2f} s ({verdict} the limit of "
        f"{LIMIT_SECONDS} s); median {wall:.2f} s on the clock; "
        f"torch {'was' if 'torch' in sys.modules else 'was not'} imported"
    )
    over = False
    for mode, times in commands.items():
        used, clock = (statistics.median(column) for column in zip(*times, strict=True))
        over = over or used >= LIMIT_SECONDS
        verdict = "OVER" if used >= LIMIT_SECONDS else "within"
        print(
            f"the whole command stage=lock lock.mode={mode} with {num_packages} packages: median {used:.2f} s of "
            f"processor time, slowest of {NUM_COMMANDS} {max(times)[0]:.2f} s ({verdict} the limit of "
            f"{LIMIT_SECONDS} s); median {clock:.2f} s on the clock (load {os.getloadavg()[0]:.1f})"
        )
    return int(bool(missed or alarms or over or slowest >= LIMIT_SECONDS or "torch" in sys.modules))


if __name__ == "__main__":
    sys.exit(main())
