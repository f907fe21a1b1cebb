"""Twelve foreign architectures, built from a configuration alone, through the trainer under every instrument.

Causal and masked language models, encoder-decoders, vision, speech, mixture of experts; tied and untied.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from pilotkit.meter import DtypeWatch, FiniteWatch, MemoryBreakdown, UpdateWatch, count_training_flops
from pilotkit.train.models import huggingface
from pilotkit.train.rows import RowStream

LENGTH = 16
DECODER = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**DECODER, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 32}
BERT = {**DECODER, "intermediate_size": 48, "max_position_embeddings": 40}
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SPEECH = {
    **VISION, "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0}
BART = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32,
}  # fmt: skip
TEXT = {"input_ids": (LENGTH,), "labels": (LENGTH,)}
ARCHITECTURES = [
    ("GPT2Config", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}, "CausalLM", TEXT),
    ("LlamaConfig", LLAMA, "CausalLM", TEXT),
    ("MistralConfig", LLAMA, "CausalLM", TEXT),
    ("Qwen2Config", {**LLAMA, "tie_word_embeddings": True}, "CausalLM", TEXT),
    ("GPTNeoXConfig", {**DECODER, "intermediate_size": 48}, "CausalLM", TEXT),
    ("MixtralConfig", {**LLAMA, "num_local_experts": 4}, "CausalLM", TEXT),
    ("BertConfig", BERT, "MaskedLM", TEXT),
    ("RobertaConfig", BERT, "MaskedLM", TEXT),
    ("T5Config", T5, "Seq2SeqLM", TEXT),
    ("BartConfig", BART, "Seq2SeqLM", TEXT),
    ("ViTConfig", {**VISION, "image_size": 16, "patch_size": 8}, "ImageClassification", {"pixel_values": (3, 16, 16)}),
    ("Wav2Vec2Config", SPEECH, "AudioClassification", {"input_values": (2000,)}),
]


class Rows:
    """The same random row of a head's inputs each time; floats for what is not tokens."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.row: dict[str, Tensor] = {
            name: torch.randint(3, 64, shape, generator=generator)
            if name in TEXT
            else torch.randn(shape, generator=generator)
            for name, shape in shapes.items()
        }
        self.row.setdefault("labels", torch.tensor(1))

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.row


@pytest.mark.filterwarnings("ignore")  # transformers' own, at import and about unusual sizes
@pytest.mark.parametrize(
    ("config_class", "options", "head", "shapes"), ARCHITECTURES, ids=[entry[0] for entry in ARCHITECTURES]
)
def test_goes_through_unchanged(
    config_class: str, options: dict[str, Any], head: str, shapes: Any, tmp_path: Path, workload: ModuleType
) -> None:
    import transformers

    getattr(transformers, config_class)(**options).save_pretrained(tmp_path)
    torch.manual_seed(0)
    model = huggingface.build(name=str(tmp_path), revision=None, auto_class=f"AutoModelFor{head}")
    trainer = workload.build_trainer(model=model, precision=workload.BF16_MIXED)
    rows = Rows(shapes)
    trainer.train_rows = RowStream(rows, micro_batch_size=2, seed=0, rank=0, world_size=1)
    with FiniteWatch(model) as finite, UpdateWatch(model, trainer.optimizer) as updates:
        first = trainer.train_step()
        for _ in range(4):
            last = trainer.train_step()
    assert finite.events == []
    assert last.loss < first.loss  # one row, again and again: any model that trains learns it
    assert updates.lost_share < 0.05
    with MemoryBreakdown(model, trainer.optimizer) as memory:
        trainer.train_step()
    breakdown = memory.result()
    num_params = sum(parameter.numel() for parameter in model.parameters())
    assert breakdown.kinds["parameters"] == 4 * num_params
    assert sum(breakdown.kinds.values()) == breakdown.peak_bytes
    with DtypeWatch(model) as dtypes:
        trainer.train_step()
    assert dtypes.table.products["bfloat16"] > 0
    batch = {name: torch.stack([value, value]) for name, value in rows.row.items()}
    assert count_training_flops(lambda: model(**batch).loss) > 0


def test_a_head_that_is_not_one(tmp_path: Path) -> None:
    from pilotkit.errors import ConfigError

    with pytest.raises(ConfigError, match=r"model\.kwargs\.auto_class=GPT2Model"):
        huggingface.build(name=str(tmp_path), revision=None, auto_class="GPT2Model")
