"""Types, paths, and the round trip through run.yaml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from pilotkit.config.load import dump, load, load_file
from pilotkit.config.schema import PilotConfig
from pilotkit.config.store import list_groups
from pilotkit.errors import ConfigError

Configure = Callable[..., PilotConfig]

AWKWARD = [
    "${x}", "\\${x}", "${", "\\\\${a} ${b", "a\\b", "\\", '"q" \'s\'', "yes", "null", "1e5", "1_000", "0x10", "1:30",
    "2026-01-01", "a: b", "# x", "  lead", "two\nlines", "größe-模型", "~", "", "%", "@a", "[a]", "{b}", "!x", "&x",
    "*x", "- a", "\t", "\x07", "=", "<<",
]  # fmt: skip


def round_trip(config: PilotConfig, folder: Path) -> PilotConfig:
    path = folder / "run.yaml"
    path.write_text(dump(config), encoding="utf-8")
    return load_file(path)


def test_text_comes_back_as_it_was(changed: Callable[..., PilotConfig], tmp_path: Path) -> None:
    kwargs = {"texts": AWKWARD, "deep": [{"text": text} for text in AWKWARD], "number": 1.0, "switch": True, "no": None}
    again = round_trip(changed({"model.kwargs": kwargs, "image": "${x}"}), tmp_path)
    assert again.model.kwargs == kwargs
    assert again.image == "${x}"
    assert type(again.model.kwargs["number"]) is float


@pytest.mark.parametrize(
    ("tokenizer", "given", "expected"),
    [("org/net", None, "abc"), ("org/net", "abc", "abc"), ("org/other", None, None), ("org/other", "main", "main")],
    ids=["of the model's repository", "said twice", "of another repository", "of another repository, named"],
)
def test_weights_and_tokenizer_of_one_repository_have_one_revision(
    configure: Configure, tmp_path: Path, tokenizer: str, given: str | None, expected: str | None
) -> None:
    hub = ("model=hf", "model.name=org/net", "model.revision=abc", "data=hf", "data.name=org/rows")
    more = (f"data.kwargs.tokenizer_revision={given}",) if given else ()
    config = configure(*hub, f"data.kwargs.tokenizer={tokenizer}", *more)
    assert config.data.kwargs["tokenizer_revision"] == expected
    assert round_trip(config, tmp_path) == config


def each_option_once() -> list[tuple[str, ...]]:
    """Every option of every group in as few configurations as there are options in the largest group."""
    groups = {name: options for name, options in list_groups().items() if name != "experiment"}
    groups["precision"].remove("fp8")
    groups["optimizer"].remove("adamw8bit")  # it goes with no sharded strategy, so it is one more
    columns = [[f"{name}={option}" for option in options] for name, options in groups.items()]
    length = max(len(column) for column in columns)
    found = [tuple(column[index % len(column)] for column in columns) for index in range(length)]
    return [*found, ("optimizer=adamw8bit", "parallelism=ddp", "pilot.strategies=[ddp]")]


@pytest.mark.parametrize("options", each_option_once(), ids=" ".join)
def test_every_option_comes_back_as_it_was(configure: Configure, tmp_path: Path, options: tuple[str, ...]) -> None:
    config = configure(
        *options,
        *("model.name=m", "model.factory=m:build", "data.name=d", "data.factory=d:build", "data.path=corpus"),
        "hardware.precisions=[fp32,tf32,bf16,bf16_mixed,fp16_mixed]",
        "parallelism.nproc_per_node=1",
        "parallelism.num_nodes=1",
    )
    assert round_trip(config, tmp_path) == config


@pytest.mark.parametrize(
    ("overrides", "section", "name", "expected"),
    [
        (["output_dir=out"], "", "output_dir", "/launched/here/out"),
        (["output_dir=/data/out"], "", "output_dir", "/data/out"),
        (["restore.path=../ckpt"], "restore", "path", "/launched/ckpt"),
        (["data=text_folder", "data.path=."], "data", "path", "/launched/here"),
        (["model=hf", "model.name=./my-model"], "model", "name", "/launched/here/my-model"),
        (["model=hf", "model.name=org/my-model"], "model", "name", "org/my-model"),
    ],
    ids=["relative", "absolute", "upwards", "this folder", "local model", "hub id"],
)
def test_paths_are_taken_from_the_folder_of_the_launch(
    configure: Configure, overrides: list[str], section: str, name: str, expected: str
) -> None:
    config: Any = configure(*overrides)
    assert getattr(getattr(config, section) if section else config, name) == expected


@pytest.mark.parametrize(
    ("overrides", "section", "argument", "expected"),
    [
        (["data=text_folder", "data.path=corpus"], "data", "path", "/launched/here/corpus"),
        (["model=hf", "model.name=./my-model"], "model", "name", "/launched/here/my-model"),
    ],
    ids=["data", "model"],
)
def test_the_factory_is_told_the_same_path(
    configure: Configure, overrides: list[str], section: str, argument: str, expected: str
) -> None:
    assert getattr(configure(*overrides), section).kwargs[argument] == expected


def test_a_home_folder_is_written_out(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert configure("output_dir='~/out'").output_dir == "/home/me/out"


def test_interpolations_are_literal_afterwards(configure: Configure) -> None:
    config = configure("model=hf", "model.name=org/net", "model.revision=abc", "+model.kwargs.twice='${train.seq_len}'")
    literal = {
        "name": "org/net",
        "revision": "abc",
        "weights": "auto",
        "auto_class": "AutoModelForCausalLM",
        "twice": 128,
    }
    assert config.model.kwargs == literal


def test_a_configuration_without_our_schema_is_typed_all_the_same(compose: Callable[..., DictConfig]) -> None:
    plain: Any = OmegaConf.to_container(compose(), resolve=True)
    plain["train"]["seq_len"], plain["model"]["kwargs"]["text"] = "64", "\\${x}"
    config = load(OmegaConf.create(plain), launch_dir=Path("/l"))
    assert (config.train.seq_len, config.model.kwargs["text"]) == (64, "${x}")


def test_every_section_that_does_not_type_is_told(compose: Callable[..., DictConfig]) -> None:
    plain: Any = OmegaConf.to_container(compose(), resolve=True)
    plain["train"]["seq_len"], plain["optimizer"]["lr"], plain["stray"] = "long", "fast", 1
    with pytest.raises(ConfigError) as caught:
        load(OmegaConf.create(plain), launch_dir=Path("/l"))
    assert [problem.key for problem in caught.value.problems] == ["optimizer.lr", "train.seq_len", "stray"]
    assert str(caught.value).splitlines()[:3] == [
        "3 problems in the configuration; nothing was started.",
        "1. optimizer.lr=fast",
        "    allowed: a number",
    ]
