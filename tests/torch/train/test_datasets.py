"""Rows of text and of random tokens: their content, their splits, and what is too little."""

from pathlib import Path

import pytest
import torch

from pilotkit.errors import ConfigError
from pilotkit.provenance.revisions import resolve_data
from pilotkit.train import datasets
from pilotkit.train.datasets import DataChangedError, split_rows


def text_folder(path, *, split, seq_len=4, pattern="*"):
    return datasets.text_folder(split=split, seq_len=seq_len, seed=0, path=str(path), pattern=pattern)


def as_text(row):
    assert torch.equal(row["input_ids"], row["labels"])
    assert row["input_ids"].dtype == torch.int64
    return bytes(row["input_ids"].tolist()).decode()


def test_rows_are_windows_over_files_in_order(tmp_path):
    (tmp_path / "b.txt").write_text("hij")
    (tmp_path / "a.txt").write_text("abcdefg")
    (tmp_path / "c.txt").write_text("")
    (tmp_path / "d.txt").write_text("klmnop")
    train, held = text_folder(tmp_path, split="train"), text_folder(tmp_path, split="eval")
    assert [as_text(train[index]) for index in range(len(train))] == ["abcd", "efgh", "ijkl"]
    assert [as_text(held[index]) for index in range(len(held))] == ["mnop"]


def test_row_over_many_small_files(tmp_path):
    for number, text in enumerate(["a", "b", "", "cd", "e", "fgh"]):
        (tmp_path / f"{number}.txt").write_text(text)
    assert as_text(text_folder(tmp_path, split="train")[0]) == "abcd"
    assert as_text(text_folder(tmp_path, split="eval")[0]) == "efgh"


@pytest.mark.parametrize(
    ("num_rows", "num_train", "num_eval"), [(2, 1, 1), (20, 19, 1), (39, 38, 1), (40, 38, 2), (100, 95, 5)]
)
def test_splits_do_not_overlap(num_rows, num_train, num_eval):
    train = split_rows(num_rows, split="train", key="data", value=num_rows)
    held = split_rows(num_rows, split="eval", key="data", value=num_rows)
    assert (len(train), len(held)) == (num_train, num_eval)
    assert [*train, *held] == list(range(num_rows))


def test_too_little_text_names_the_path(tmp_path):
    (tmp_path / "a.txt").write_text("1234567")
    with pytest.raises(ConfigError) as caught:
        text_folder(tmp_path, split="train")
    assert str(caught.value) == (
        f"1 problem in the configuration; nothing was started.\n1. data.path={tmp_path}\n"
        "    allowed: at least one row to train on and one to evaluate\n"
        "    to mend: there are 1 rows of train.seq_len tokens; give more data or shorter rows"
    )


def test_rows_longer_than_the_standard_library_name_seq_len():
    with pytest.raises(ConfigError, match=r"1\. train\.seq_len=1000000000\n"):
        datasets.stdlib(split="train", seq_len=1_000_000_000, seed=0)


def test_file_that_shrank_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("12345678")
    train = text_folder(tmp_path, split="train")
    (tmp_path / "a.txt").write_text("1")
    with pytest.raises(DataChangedError) as caught:
        train[0]
    expected = "shorter than when this run counted its rows; do not change data while it is read"
    assert str(caught.value) == f"{tmp_path}/a.txt: {expected}"


def test_stdlib_has_many_rows_and_the_lock_counts_the_same():
    train = datasets.stdlib(split="train", seq_len=128, seed=0)
    pinned = resolve_data(
        name="stdlib", factory="pilotkit.train.datasets:stdlib", revision=None, path=None, kwargs={},
        launch_dir=Path(), seq_len=128,
    )  # fmt: skip
    assert pinned.num_rows == {"train": len(train), "eval": len(datasets.stdlib(split="eval", seq_len=128, seed=0))}
    assert len(train) > 10_000
    assert train[len(train) - 1]["input_ids"].shape == (128,)


def test_synthetic_rows_come_again_and_differ():
    def rows(split, seed=0):
        return datasets.synthetic(split=split, seq_len=64, seed=seed, vocab_size=9, num_rows=20)

    train, held = rows("train"), rows("eval")
    assert (len(train), len(held)) == (19, 1)
    assert torch.equal(train[3]["input_ids"], rows("train")[3]["input_ids"])
    different = [train[0], train[1], held[0], rows("train", seed=1)[0]]
    assert len({tuple(row["input_ids"].tolist()) for row in different}) == 4
    assert set(train[0]["input_ids"].tolist()) <= set(range(9))
