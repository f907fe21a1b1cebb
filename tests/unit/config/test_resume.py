"""Which differences between a checkpoint's configuration and this run's are refused, and which are free."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pilotkit.config.load import dump, load
from pilotkit.config.resume import BATCH_FACTORS, SECTIONS, read_saved, refuse_differences
from pilotkit.config.schema import PilotConfig
from pilotkit.config.shapes import Pair, Shape, rows_per_step, shape_pairs
from pilotkit.config.store import CONFIG_NAME, conf_dir, register_schema
from pilotkit.errors import ConfigError


@pytest.fixture
def configure(tmp_path):
    def of(*overrides: str) -> PilotConfig:
        register_schema()
        with initialize_config_dir(str(conf_dir()), version_base=None):
            return load(compose(CONFIG_NAME, list(overrides)), launch_dir=tmp_path)

    return of


def test_what_decides_the_result_reads_back_from_the_saved_text(configure) -> None:
    config = configure("model=gpt2", "optimizer.lr=0.01")
    saved = read_saved(dump(config))
    for section in (*SECTIONS, *BATCH_FACTORS):
        assert getattr(saved, section) == getattr(config, section)


def test_a_checkpoint_from_before_a_section_existed_is_read(configure) -> None:
    config = configure()
    plain = OmegaConf.create(dump(config))
    for section in plain.keys() - {*SECTIONS, *BATCH_FACTORS}:
        del plain[section]
    plain["section_of_old"] = {"option": 1}
    assert refuse_differences(OmegaConf.to_yaml(plain), config, allowed=[]) == []


@pytest.mark.parametrize(
    "override",
    [
        "data.num_workers=2",
        "train.eval_every_steps=7",
        "restore.num_steps=9",
        "parallelism=fsdp",
        "name=other",
        "optimizer.implementation=fused",
        "activation_checkpointing=full",
        "data.path=elsewhere",
    ],
)
def test_what_decides_no_result_is_free(override: str, configure) -> None:
    assert refuse_differences(dump(configure()), configure(override), allowed=[]) == []


def test_the_same_rows_a_step_in_other_pieces_are_free(configure) -> None:
    saved = configure("train.micro_batch_size=4", "train.grad_accum_steps=1")
    here = configure("train.micro_batch_size=2", "train.grad_accum_steps=2")
    assert refuse_differences(dump(saved), here, allowed=[]) == []


def test_every_difference_is_named_with_both_values(configure) -> None:
    here = configure("optimizer.lr=0.01", "train.seed=3", "train.global_batch_size=16")
    with pytest.raises(ConfigError) as caught:
        refuse_differences(dump(configure()), here, allowed=[])
    found = {problem.key: (problem.value, problem.allowed) for problem in caught.value.problems}
    assert found == {
        "optimizer.lr": (0.01, "0.0003, as the checkpoint was saved with"),
        "train.global_batch_size": (16, "8, as the checkpoint was saved with"),
        "train.seed": (3, "0, as the checkpoint was saved with"),
    }
    assert "restore.allow_changes=[optimizer.lr]" in caught.value.problems[0].fix


def test_what_is_allowed_by_name_passes(configure) -> None:
    here = configure("optimizer.lr=0.01", "precision=bf16")
    found = refuse_differences(dump(configure()), here, allowed=["optimizer.lr", "precision"])
    assert {item.key for item in found} == {
        "optimizer.lr",
        "precision.name",
        "precision.param_dtype",
        "precision.compute_dtype",
        "precision.reduce_dtype",
    }
    with pytest.raises(ConfigError, match=r"optimizer\.lr=0\.01"):
        refuse_differences(dump(configure()), here, allowed=["precision"])


def test_a_checkpoint_from_before_an_option_takes_its_default(configure) -> None:
    text = dump(configure()).replace("  shape_rtol: 0.001\n", "").replace("  max_grad_norm: 1.0\n", "")
    assert refuse_differences(text, configure(), allowed=[]) == []
    with pytest.raises(ConfigError, match=r"train\.max_grad_norm=2\.0"):
        refuse_differences(text, configure("train.max_grad_norm=2.0"), allowed=[])


def test_text_that_is_no_configuration_is_said(configure) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        refuse_differences("train: [1, 2]\n", configure(), allowed=[])


def test_pairs_of_shapes(configure) -> None:
    config = configure("restore.world_sizes=[1,2]", "restore.strategies=[ddp,fsdp]")
    ddp_1, ddp_2, fsdp_2 = Shape("ddp", 1), Shape("ddp", 2), Shape("fsdp", 2)
    assert shape_pairs(config) == [
        Pair(ddp_1, ddp_1),
        Pair(ddp_1, ddp_2),
        Pair(ddp_2, ddp_1),
        Pair(ddp_2, ddp_2),
        Pair(ddp_2, fsdp_2),
        Pair(fsdp_2, ddp_2),
    ]
    assert shape_pairs(configure()) == []
    # 4 rows a pass on 1, 2 and 3 ranks: 24 is the least that all can make, and the intended 8 do not divide by 12.
    assert rows_per_step(configure("restore.world_sizes=[1,2,3]")) == 24


def test_wrong_shapes_are_refused_together(configure) -> None:
    with pytest.raises(ConfigError) as caught:
        configure("restore.world_sizes=[0,2]", "restore.strategies=[ddp,single]")
    assert [problem.key for problem in caught.value.problems] == ["restore.world_sizes", "restore.strategies"]
