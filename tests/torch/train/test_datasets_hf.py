"""Rows from a Hugging Face table, where `datasets` is installed."""

import pytest

from pilotkit.errors import ConfigError
from pilotkit.train import datasets

TEXTS = ["hello ", "world, ", "", "again "] * 4  # 19 bytes four times: 76 bytes, 9 rows of 8


@pytest.fixture
def saved(tmp_path, monkeypatch):
    import datasets as hf

    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hf.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


def rows(name, *, split="train", seq_len=8, text_column="text"):
    options = {"name": name, "revision": None, "text_column": text_column, "tokenizer": None}
    return datasets.huggingface(split=split, seq_len=seq_len, seed=0, **options)


def test_texts_are_laid_end_to_end(saved):
    train, held = rows(saved), rows(saved, split="eval")
    assert (len(train), len(held)) == (8, 1)
    text = "".join(TEXTS).encode()
    found = [bytes(part[index]["input_ids"].tolist()) for part in (train, held) for index in range(len(part))]
    assert b"".join(found) == text[:72]


@pytest.mark.parametrize(("given", "asked"), [("abc", "abc"), (None, "main")])
def test_the_tokenizer_is_that_of_its_revision(saved, monkeypatch, given, asked):
    """What the lock resolves is what is loaded."""
    import transformers

    calls = []

    def load(name, revision):
        calls.append((name, revision))
        return lambda texts: {"input_ids": [list(text.encode()) for text in texts]}

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    options = {"name": saved, "revision": None, "text_column": "text", "tokenizer": "org/net"}
    datasets.huggingface(split="train", seq_len=8, seed=0, tokenizer_revision=given, **options)
    assert calls == [("org/net", asked)]


def test_unknown_column_lists_the_columns(saved):
    with pytest.raises(ConfigError) as caught:
        rows(saved, text_column="body")
    assert str(caught.value) == (
        "1 problem in the configuration; nothing was started.\n1. data.kwargs.text_column=body\n"
        f"    allowed: a column of {saved}: text\n    to mend: name one of these"
    )


def test_too_little_text_names_the_row_length(saved):
    with pytest.raises(ConfigError, match=r"1\. train\.seq_len=70\n"):
        rows(saved, seq_len=70)
