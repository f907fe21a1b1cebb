"""What is said without the extra. Real models are tried where transformers is installed."""

import sys

import pytest
import torch

from pilotkit.errors import ConfigError
from pilotkit.train import datasets
from pilotkit.train.models import huggingface


def test_absent_transformers_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError) as caught:
        huggingface.build(name="some/model", revision="abc", weights="auto")
    assert str(caught.value) == (
        "1 problem in the configuration; nothing was started.\n1. model.name=some/model\n"
        "    allowed: a model that can be built here\n"
        "    to mend: pip install pilotkit[hf] (importing transformers failed: "
        "import of transformers halted; None in sys.modules)"
    )


def test_absent_datasets_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"1\. data\.name=some/data\n(.|\n)*pip install pilotkit\[hf\]"):
        datasets.huggingface(
            split="train", seq_len=8, seed=0, name="some/data", revision="abc", text_column="text", tokenizer=None
        )


def test_unknown_choice_of_weights_is_refused():
    with pytest.raises(ConfigError, match=r"1\. model\.kwargs\.weights=pretrained\n    allowed: auto, random\n"):
        huggingface.build(name="some/model", revision=None, weights="pretrained")


@pytest.fixture
def config_folder(tmp_path):
    import transformers

    options = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        **options, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16, rms_norm_eps=1e-5
    )
    config.save_pretrained(tmp_path)
    return tmp_path


def test_folder_with_only_a_configuration_gives_random_weights(config_folder):
    model = huggingface.build(name=str(config_folder), revision=None, weights="auto")
    tokens = torch.arange(16)[None]
    assert model(input_ids=tokens, labels=tokens).loss.item() == pytest.approx(3.47, abs=0.2)  # ln(32)
    assert model.training
    assert model.config.use_cache is False


def test_weights_of_a_folder_are_loaded_unless_random(config_folder):
    first = huggingface.build(name=str(config_folder), revision=None, weights="random")
    first.save_pretrained(config_folder)
    loaded = huggingface.build(name=str(config_folder), revision=None, weights="auto")
    again = huggingface.build(name=str(config_folder), revision=None, weights="random")
    name, weight = next(iter(first.named_parameters()))
    assert torch.equal(loaded.get_parameter(name), weight)
    assert not torch.equal(again.get_parameter(name), weight)
    assert weight.dtype == torch.float32


def test_built_in_llama_is_hugging_faces(config_folder):
    """The same weights give the same logits: rotary halves, grouped heads, SwiGLU and norms are where they belong."""
    from pilotkit.train.models import llama

    theirs = huggingface.build(name=str(config_folder), revision=None, weights="random")
    sizes = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "hidden_size": 16, "ffn_size": 24}
    mine = llama.build(vocab_size=32, max_seq_len=16, rope_theta=10000.0, **sizes)
    names = {
        "model.embed_tokens": "token_embedding",
        "model.layers": "blocks",
        "self_attn.o_proj": "attention.out",
        "self_attn": "attention",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "model.norm": "norm",
        "_proj": "",
    }
    weights = {}
    for name, tensor in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        weights[name] = tensor
    mine.load_state_dict(weights)
    tokens = torch.arange(16)[None]
    torch.testing.assert_close(mine(tokens).logits, theirs(tokens).logits)
