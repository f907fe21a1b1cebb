"""The command line from outside and in this process: what is refused before anything starts, and with which words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from pilotkit import front
from pilotkit.errors import ConfigError, StageFailed
from pilotkit.front import CompositionError


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[DictConfig]]:
    """What Hydra would have run, in place of a stage. The folder is empty, and Hydra's own changes are undone."""
    seen: list[DictConfig] = []
    monkeypatch.setattr(front, "task", seen.append)
    monkeypatch.setattr(sys, "argv", ["pilotkit"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")
    monkeypatch.chdir(tmp_path)
    yield seen
    GlobalHydra.instance().clear()


def test_a_single_run(task: list[DictConfig]) -> None:
    assert front.run(["stage=measure", "train.seq_len=64"]) == 0
    assert [(config.stage, config.train.seq_len) for config in task] == [("measure", 64)]
    assert list(Path.cwd().iterdir()) == [], "no folder of Hydra's"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config-dir", "mine", "stage=lock", "train.seed=3"],
        ["stage=lock", "--config-dir", "mine", "train.seed=3"],
        ["stage=lock", "train.seed=3", "--config-dir=mine"],
    ],
    ids=["before", "between", "after"],
)
def test_flags_may_stand_anywhere(task: list[DictConfig], tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "mine").mkdir()
    front.run(arguments)
    assert [(config.stage, config.train.seed) for config in task] == [("lock", 3)]


def test_an_option_of_the_users_own_folder(task: list[DictConfig], tmp_path: Path) -> None:
    (tmp_path / "mine" / "hardware").mkdir(parents=True)
    text = "name: mine\ndevice_type: cpu\ndevice_count: 3\nmemory_bytes: 1000000\nprecisions: [fp32]\n"
    (tmp_path / "mine" / "hardware" / "mine.yaml").write_text(text, encoding="utf-8")
    front.run(["--config-dir", "mine", "hardware=mine"])
    assert [config.hardware.device_count for config in task] == [3]


def test_a_sweep_runs_every_point(task: list[DictConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Path] = []
    monkeypatch.setattr("pilotkit.dispatch.tell_sweep", lambda folder: told.append(folder) or 1)
    assert front.run(["-m", "stage=lock", "train.seed=1,2", "hydra/hydra_logging=disabled"]) == 1
    assert [config.train.seed for config in task] == [1, 2]
    assert told[0].parent == Path.cwd() / "outputs" / "default" / "sweeps"
    assert front.run(["stage=lock"]) == 0, "the next single run has nothing to do with that sweep"
    assert len(told) == 1


def test_how_a_run_ended_is_raised(task: list[DictConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: DictConfig) -> None:
        raise StageFailed("measure failed: rank 0")

    monkeypatch.setattr(front, "task", fail)
    with pytest.raises(StageFailed, match=r"^measure failed: rank 0$"):
        front.run(["stage=measure"])


def refused(*arguments: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        front.run(list(arguments))
    return str(caught.value).splitlines()


def test_every_problem_of_one_command_in_one_message(task: list[DictConfig]) -> None:
    arguments = ("+stray=1", "train.seqlen=5", "hardware=h1000", "train.compile=maybe", "train.global_batch_size=7")
    lines = refused(*arguments, "parallelism.dp_shard=3", "name='a b'", "optimizer.betas=[1,2,3]")
    assert [line for line in lines if line[0].isdigit()] == [
        "7 problems in the configuration; nothing was started.",
        "1. stray=1",
        "2. train.seqlen=5",
        "3. hardware=h1000",
        "4. train.compile=maybe",
        # What follows was found by composing the rest; the global batch rests on the hardware, which is unknown.
        "5. name='a b'",
        "6. optimizer.betas=[1.0, 2.0, 3.0]",
        "7. parallelism.dp_shard=3",
    ]
    assert task == []


def test_what_rests_on_a_mistake_is_not_told(task: list[DictConfig]) -> None:
    assert refused("model.factory=custom", "model=nope", "data=text_folder")[:2] == [
        "2 problems in the configuration; nothing was started.",
        "1. model=nope",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["hydra.foo=1"],
            "The configuration cannot be composed; nothing was started.\n"
            "Could not override 'hydra.foo'.\nTo append to your config use +hydra.foo=1",
        ),
    ],
    ids=["Hydra's own"],
)
def test_what_only_hydra_knows(task: list[DictConfig], arguments: list[str], message: str) -> None:
    with pytest.raises(CompositionError) as caught:
        front.run(arguments)
    assert (str(caught.value), caught.value.exit_code) == (message, 2)
    assert task == []


@pytest.mark.parametrize(
    ("arguments", "heads"),
    [
        (
            ["+stray=1", "train.seq_len=abc", "hardware=h1000", "train.seed=1,2"],
            [
                "4 problems in the configuration; nothing was started.",
                "1. stray=1",
                "2. train.seq_len=abc",
                "3. hardware=h1000",
                "4. train.seed=1,2",
            ],
        ),
        (
            ["train.seq_len=${nope}", "optimizer.lr=inf"],
            ["1 problem in the configuration; nothing was started.", "1. train.seq_len=${nope}"],
        ),
        (
            ["model=custom", "data=text_folder", "train.global_batch_size=7"],
            ["1 problem in the configuration; nothing was started.", "1. model.factory=???"],
        ),
        (
            ["data=text_folder", "train.global_batch_size=7", "precision=tf32"],
            [
                "3 problems in the configuration; nothing was started.",
                "1. data.path=null",
                "2. precision=tf32",
                "3. train.global_batch_size=7",
            ],
        ),
    ],
    ids=["overrides", "interpolation", "missing", "meaning"],
)
def test_the_command_line_says_it_and_exits_with_2(
    pilotkit_cli: Callable[..., Any], tmp_path: Path, arguments: list[str], heads: list[str]
) -> None:
    result = pilotkit_cli(*arguments)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    lines = result.stderr.splitlines()
    assert [line for line in lines if line[0].isdigit()] == heads
    assert all(line.startswith(("    allowed: ", "    to mend: ")) for line in lines if not line[0].isdigit())
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_with_a_wrong_point_runs_the_others_and_exits_with_2(
    pilotkit_cli: Callable[..., Any], tmp_path: Path
) -> None:
    result = pilotkit_cli("-m", "stage=plan", "train.global_batch_size=8,7", "hydra/hydra_logging=disabled")
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    rows = [line.split()[:2] for line in result.stdout.splitlines() if line.startswith(("ok ", "refused "))]
    assert rows == [["ok", "8"], ["refused", "7"]]
    assert "allowed: a multiple of 8 = micro_batch_size 4 x dp_degree 2" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("2 points: 1 ok, 1 refused. Records: ")
    assert len(list(tmp_path.glob("outputs/default/plan/*/record.json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "asks"),
    [(["stage=lock"], 0), (["-m", "stage=lock"], 0), (["stage=lock", "hydra.mode=RUN"], 1)],
    ids=["one run", "several", "the user speaks of the mode"],
)
def test_hydra_composes_once_unless_the_user_speaks_of_the_mode(
    task: list[DictConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], asks: int
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    real = Hydra.get_mode

    def get_mode(self: Hydra, config_name: str | None, overrides: list[str]) -> object:
        asked.append("mode")
        return real(self, config_name, overrides)

    monkeypatch.setattr(Hydra, "get_mode", get_mode)
    monkeypatch.setattr("pilotkit.dispatch.tell_sweep", lambda folder: 0)
    assert front.run(arguments) == 0
    assert len(asked) == asks
    assert Hydra.get_mode is get_mode, "it is put back"
