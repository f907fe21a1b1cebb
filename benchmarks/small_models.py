"""The models that `architectures.py` takes through the stages: small, random, made from their own configurations.

Each is built by transformers' own class, offline, and by a factory as a user writes one. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers

VOCAB = 512
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {"vocab_size": VOCAB, "max_position_embeddings": 128, **SMALL}


@dataclass(frozen=True)
class Model:
    """One architecture. `config` makes its configuration, None is a factory of head_rows.py; `disk` is what lies in its
    folder; `data` the overrides."""

    about: str
    config: Callable[[], Any] | None
    auto_class: str = "AutoModelForCausalLM"
    disk: str = "config"
    """`config`, `float32`, `float16`, or `text`: float32 weights, a tokenizer, and a data set of text."""
    data: tuple[str, ...] = ("data=synthetic", f"data.kwargs.vocab_size={VOCAB}")
    precision: str = "bf16_mixed"
    others: tuple[str, ...] = ()
    """Overrides that this model needs."""


def rows(name: str, **kwargs: int) -> tuple[str, ...]:
    """Overrides for a factory of head_rows.py."""
    options = ", ".join(f"{key}: {value}" for key, value in kwargs.items())
    return ("data=custom", f"data.factory=head_rows:{name}", "data.name=" + name, f"data.kwargs={{{options}}}")


MODELS: dict[str, Model] = {
    "gpt2": Model(
        "causal LM, tied",
        lambda: transformers.GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=64, n_layer=2, n_head=4),
    ),
    "llama": Model(
        "causal LM, untied, grouped queries",
        lambda: transformers.LlamaConfig(**TEXT, num_key_value_heads=2, tie_word_embeddings=False),
    ),
    "qwen2": Model(
        "causal LM, tied, own tokenizer and text",
        lambda: transformers.Qwen2Config(**TEXT, num_key_value_heads=2, tie_word_embeddings=True),
        disk="text",
        data=("data=hf", "data.name=text", "data.kwargs.tokenizer=models/qwen2"),
    ),
    "gpt_neox": Model(
        "causal LM, untied, float16 on disk",
        lambda: transformers.GPTNeoXConfig(**TEXT, tie_word_embeddings=False),
        disk="float16",
    ),
    "mixtral": Model(
        "mixture of experts, untied",
        lambda: transformers.MixtralConfig(
            **TEXT, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
        ),
    ),
    "qwen2_moe": Model(
        "mixture of experts with a shared one, tied",
        lambda: transformers.Qwen2MoeConfig(
            **TEXT,
            num_key_value_heads=2,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
            output_router_logits=True,
            tie_word_embeddings=True,
        ),
    ),
    "bert": Model(
        "masked LM, tied",
        lambda: transformers.BertConfig(**TEXT),
        auto_class="AutoModelForMaskedLM",
        disk="float32",
        data=rows("masked", vocab_size=VOCAB),
    ),
    "deberta": Model(
        "masked LM, relative positions",
        lambda: transformers.DebertaV2Config(**TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"]),
        auto_class="AutoModelForMaskedLM",
        data=rows("masked", vocab_size=VOCAB),
    ),
    "t5": Model(
        "encoder-decoder, tied",
        lambda: transformers.T5Config(
            vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
        ),
        auto_class="AutoModelForSeq2SeqLM",
        data=rows("translated", vocab_size=VOCAB),
    ),
    "bart": Model(
        "encoder-decoder, tied, float16 on disk",
        lambda: transformers.BartConfig(
            vocab_size=VOCAB,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            max_position_embeddings=128,
        ),
        auto_class="AutoModelForSeq2SeqLM",
        disk="float16",
        data=rows("translated", vocab_size=VOCAB),
    ),
    "vit": Model(
        "vision, transformer",
        lambda: transformers.ViTConfig(**SMALL, image_size=32, patch_size=8, num_labels=10),
        auto_class="AutoModelForImageClassification",
        disk="float32",
        data=rows("images", size=32, num_labels=10),
    ),
    "resnet": Model(
        "vision, convolutions with batch norm",
        lambda: transformers.ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic", num_labels=10
        ),
        auto_class="AutoModelForImageClassification",
        data=rows("images", size=32, num_labels=10),
    ),
    "wav2vec2": Model(
        "speech, CTC",
        lambda: transformers.Wav2Vec2Config(
            **SMALL,
            vocab_size=32,
            conv_dim=(32, 32, 32),
            conv_stride=(5, 4, 4),
            conv_kernel=(10, 8, 4),
            num_feat_extract_layers=3,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            mask_time_length=2,
            layerdrop=0.0,
        ),
        auto_class="AutoModelForCTC",
        data=rows("waves", num_samples=4000, vocab_size=32, num_labels=8),
    ),
    "whisper": Model(
        "speech, encoder-decoder",
        lambda: transformers.WhisperConfig(
            vocab_size=VOCAB,
            num_mel_bins=16,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            max_source_positions=50,
            max_target_positions=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
        auto_class="AutoModelForSpeechSeq2Seq",
        data=rows("spectra", num_bins=16, num_frames=100, vocab_size=VOCAB),
    ),
    "albert": Model(
        "masked LM, one block for all layers",
        lambda: transformers.AlbertConfig(**TEXT, embedding_size=32),
        auto_class="AutoModelForMaskedLM",
        data=rows("masked", vocab_size=VOCAB),
    ),
    "mamba": Model(
        "causal LM, state space",
        lambda: transformers.MambaConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, state_size=8),
    ),
    "gemma3": Model(
        "causal LM, tied, sliding windows",
        lambda: transformers.Gemma3TextConfig(**TEXT, num_key_value_heads=2, head_dim=16, sliding_window=16),
    ),
    # Its experts run only where rows come to them, and its router casts its own weights: both are told by name.
    "switch": Model(
        "encoder-decoder, mixture of experts, tied",
        lambda: transformers.SwitchTransformersConfig(
            vocab_size=VOCAB,
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_sparse_encoder_layers=1,
            num_decoder_layers=2,
            num_sparse_decoder_layers=1,
            num_heads=4,
            num_experts=4,
            decoder_start_token_id=0,
        ),
        auto_class="AutoModelForSeq2SeqLM",
        data=rows("translated", vocab_size=VOCAB),
        precision="fp32",
        others=("parallelism.find_unused_parameters=true",),
    ),
    "swin": Model(
        "vision, shifted windows, float16 on disk",
        lambda: transformers.SwinConfig(
            image_size=32, patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10
        ),
        auto_class="AutoModelForImageClassification",
        disk="float16",
        data=rows("images", size=32, num_labels=10),
    ),
    "mixed_parts": Model(
        "own factory: LSTM, weight norm, frozen layer",
        None,
        data=("data=synthetic", f"data.kwargs.vocab_size={VOCAB}"),
        others=("model.factory=head_rows:mixed_parts", f"model.kwargs.vocab_size={VOCAB}"),
    ),
}
