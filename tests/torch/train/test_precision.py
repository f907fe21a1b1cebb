"""What each policy stores, computes in and switches."""

import pytest
import torch

from pilotkit.train.precision import PrecisionPolicy

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _old_switches():
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


@pytest.mark.parametrize("allow", [True, False])
def test_both_tf32_switches_are_set_both_ways(allow):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not allow
    policy = PrecisionPolicy(param_dtype="float32", compute_dtype="float32", reduce_dtype="float32", allow_tf32=allow)
    policy.apply_to_backend(CPU)
    assert torch.backends.cuda.matmul.allow_tf32 is allow
    assert torch.backends.cudnn.allow_tf32 is allow
    assert torch.get_float32_matmul_precision() == ("high" if allow else "highest")


@pytest.mark.parametrize(
    ("param", "compute", "sharded", "stored", "computed"),
    [
        ("float32", "float32", False, torch.float32, torch.float32),
        ("float32", "bfloat16", False, torch.float32, torch.bfloat16),
        ("float32", "float16", False, torch.float32, torch.float16),
        ("float32", "bfloat16", True, torch.float32, torch.float32),  # FSDP's own policy casts instead
        ("bfloat16", "bfloat16", False, torch.bfloat16, torch.bfloat16),
    ],
)
def test_storage_and_computation(param, compute, sharded, stored, computed):
    policy = PrecisionPolicy(param_dtype=param, compute_dtype=compute, reduce_dtype="float32")
    model = torch.nn.Linear(2, 2)
    assert policy.cast(model) is model
    assert model.weight.dtype == stored
    with policy.autocast(CPU, sharded=sharded):
        assert model(torch.zeros(1, 2, dtype=stored)).dtype == computed


def test_scaler_is_built_only_when_it_is_asked_for():
    without = PrecisionPolicy(param_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32")
    scaled = PrecisionPolicy(param_dtype="float32", compute_dtype="float16", reduce_dtype="float32", grad_scaler=True)
    assert without.build_scaler(CPU) is None
    scaler = scaled.build_scaler(CPU)
    assert scaler.get_scale() == 65536.0
