"""The built-in decoders: parameter counts, the loss against torch, causality, and refused shapes."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the field's usual name

from pilotkit.errors import ConfigError
from pilotkit.train.models import gpt, llama
from pilotkit.train.models.llama import rotary_angles, rotate

GPT = {"vocab_size": 32, "num_layers": 2, "num_heads": 2, "hidden_size": 16, "max_seq_len": 16, "dropout": 0.0}
LLAMA = {
    "vocab_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "hidden_size": 16,
    "ffn_size": 24,
    "max_seq_len": 16,
    "rope_theta": 10000.0,
}
MODELS = {
    "gpt tied": lambda: gpt.build(**GPT, tie_embeddings=True),
    "gpt": lambda: gpt.build(**GPT, tie_embeddings=False),
    "llama": lambda: llama.build(**LLAMA),
}


@pytest.fixture(params=MODELS, autouse=False)
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]()


def num_params(model):
    return sum(param.numel() for param in model.parameters())


def test_llama3_8b_has_its_published_size():
    options = {"num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "hidden_size": 4096, "ffn_size": 14336}
    with torch.device("meta"):
        model = llama.build(vocab_size=128256, max_seq_len=131072, rope_theta=500000.0, **options)
    # Embedding and head, then per layer q and out, k and v, gate up down, two norms; one norm at the end.
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert num_params(model) == 2 * 128256 * 4096 + 32 * layer + 4096 == 8_030_261_248


def test_gpt2_has_its_published_size():
    options = {"num_layers": 12, "num_heads": 12, "hidden_size": 768, "max_seq_len": 1024, "dropout": 0.0}
    with torch.device("meta"):
        model = gpt.build(vocab_size=50257, tie_embeddings=True, **options)
    assert num_params(model) == 124_439_808


def test_loss_is_the_cross_entropy_of_the_next_token(model):
    tokens = torch.randint(32, (3, 16))
    labels = tokens.clone()
    labels[0, 5:] = -100
    output = model(input_ids=tokens, labels=labels)
    assert output.logits.shape == (3, 16, 32)
    shifted = labels[:, 1:].flatten()
    picked = -output.logits[:, :-1].log_softmax(-1).flatten(0, 1)[torch.arange(45), shifted.clamp(min=0)]
    torch.testing.assert_close(output.loss, picked[shifted >= 0].mean())
    assert model(input_ids=tokens).loss is None


@pytest.mark.parametrize(
    "loss_chunks", [2, 32]
)  # 48 tokens: 2 chunks of 24, and 24 of 2, as no 32 of one size are there
def test_a_loss_in_chunks_is_the_same_loss(model, loss_chunks):
    tokens = torch.randint(32, (3, 16))
    labels = tokens.clone()
    labels[0, 5:] = -100
    found = {}
    for chunks in (1, loss_chunks):
        model.loss_chunks = chunks
        model.zero_grad(set_to_none=True)
        output = model(input_ids=tokens, labels=labels)
        output.loss.backward()
        found[chunks] = [output.loss, *(param.grad.clone() for param in model.parameters())]
    assert output.logits is None
    for whole, chunked in zip(found[1], found[loss_chunks], strict=True):
        torch.testing.assert_close(chunked, whole)
    assert model(input_ids=tokens).logits.shape == (3, 16, 32)


@pytest.mark.parametrize("loss_chunks", [0, 3])
def test_chunks_that_cannot_be_are_refused(loss_chunks):
    with pytest.raises(ConfigError, match=rf"model.kwargs.loss_chunks={loss_chunks}\n    allowed: 1, 2, 4, 8, 16, 32"):
        llama.build(**LLAMA, loss_chunks=loss_chunks)


def test_later_tokens_have_no_say(model):
    tokens = torch.randint(32, (1, 16))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 32
    before, after = (model.eval()(input_ids=ids).logits for ids in (tokens, changed))
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_every_parameter_gets_a_gradient(model):
    tokens = torch.randint(32, (2, 16))
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert [name for name, param in model.named_parameters() if param.grad is None] == []


def test_rows_longer_than_the_positions_are_refused(model):
    with pytest.raises(ConfigError) as caught:
        model(input_ids=torch.zeros(1, 17, dtype=torch.int64))
    assert str(caught.value) == (
        "1 problem in the configuration; nothing was started.\n1. train.seq_len=17\n    allowed: at most 16\n"
        "    to mend: shorten train.seq_len, or raise model.kwargs.max_seq_len=16"
    )


@pytest.mark.parametrize(
    ("build", "key"),
    [
        (lambda: gpt.build(**{**GPT, "num_heads": 3}, tie_embeddings=True), "model.kwargs.hidden_size=16"),
        (lambda: llama.build(**{**LLAMA, "num_kv_heads": 3}), "model.kwargs.num_heads=4"),
        (lambda: llama.build(**{**LLAMA, "num_heads": 16, "num_kv_heads": 1}), "model.kwargs.hidden_size=16"),
    ],
    ids=["gpt heads", "kv heads", "odd head size"],
)
def test_shapes_that_do_not_divide_are_refused(build, key):
    with pytest.raises(ConfigError, match=rf"1\. {key}\n    allowed: a multiple of"):
        build()


def test_rotation_is_complex_multiplication():
    cos, sin = rotary_angles(5, head_size=8, theta=100.0, device=torch.device("cpu"))
    x = torch.randn(1, 1, 5, 8)
    angles = torch.arange(5)[:, None] * 100.0 ** (-torch.arange(4) / 4)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(5, 4), angles)
    torch.testing.assert_close(rotate(x, cos, sin), torch.cat((turned.real, turned.imag), dim=-1))


def test_grouped_heads_share_keys_in_order():
    """Head h of 4 uses key head h // 2 of 2: the same as repeating each key head for its group."""
    torch.manual_seed(0)
    attention = llama.Attention(hidden_size=16, num_heads=4, num_kv_heads=2)
    x, cos, sin = torch.randn(2, 6, 16), torch.ones(6, 4), torch.zeros(6, 4)
    q, k, v = (part(x).view(2, 6, -1, 4).transpose(1, 2) for part in (attention.q, attention.k, attention.v))
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    expected = attention.out((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, cos, sin), expected)
