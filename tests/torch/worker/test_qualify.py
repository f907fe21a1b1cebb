"""What is not fit is found: wrong gradients, missing kernels, extensions that do nothing. What is fit passes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pilotkit.device import describe_stack
from pilotkit.worker.phases import qualify as phase
from pilotkit.worker.qualify.attention import attention_by_definition, check_backend, reference_of
from pilotkit.worker.qualify.extensions import judge_extension, judge_kernel, load_extensions, watch_calls
from pilotkit.worker.qualify.gradients import check_gradient
from pilotkit.worker.qualify.operators import check_operator
from pilotkit.worker.qualify.rows import Row, kernels_without_order
from pilotkit.worker.qualify.trace import OperatorTrace


@pytest.fixture(scope="module", autouse=True)
def _operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Operators of a library of our own: one right, and some wrong in one way each."""
    # torch sets this at the first operator that has a gradient in Python.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    library = torch.library.Library("pilotkit_trial", "DEF")
    for name in ("right", "wrong_gradient", "wrong_value", "no_kernel", "one_dtype"):
        library.define(f"{name}(Tensor x) -> Tensor")

    def only_float32(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise NotImplementedError("only float32 is built")
        return x * x

    library.impl("right", lambda x: x * x, "CPU")
    library.impl("wrong_gradient", lambda x: x * x, "CPU")
    library.impl("wrong_value", lambda x: x * x + (x.dtype == torch.float32) * 0.01, "CPU")
    library.impl("one_dtype", only_float32, "CPU")
    for name, factor in (("right", 2.0), ("wrong_gradient", 2.2), ("one_dtype", 2.0)):
        torch.library.register_autograd(
            f"pilotkit_trial::{name}",
            lambda ctx, gradient, factor=factor: gradient * factor * ctx.saved_tensors[0],
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
            lib=library,
        )
    yield
    library._destroy()


def trace(work: Any, *inputs: torch.Tensor) -> dict[str, Row]:
    """One row an operator of `work`."""
    with OperatorTrace() as found:
        work(*inputs)
    return {operator.name: check_operator(operator, allow_tf32=False) for operator in found.operators.values()}


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape or (4, 8), generator=torch.Generator().manual_seed(3)).to(dtype).requires_grad_(True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_right_passes_in_every_dtype(dtype: torch.dtype) -> None:
    def work(a: torch.Tensor, b: torch.Tensor) -> None:
        y = nn.functional.gelu(a @ b).relu().softmax(-1)
        torch.ops.pilotkit_trial.right(y).sum().backward()

    rows = trace(work, x(8, 16, dtype=dtype), x(16, 4, dtype=dtype))
    assert {"aten::mm", "aten::gelu", "aten::gelu_backward", "pilotkit_trial::right"} <= rows.keys()
    assert [row for row in rows.values() if row.verdict == "FAIL"] == []
    assert "backward within" in rows["aten::mm"].note


def test_a_cast_is_held_to_the_coarser_dtype() -> None:
    rows = trace(lambda a: a.to(torch.bfloat16).sum().backward(), x(32, 32))
    assert [row for row in rows.values() if row.verdict == "FAIL"] == []
    assert rows["aten::_to_copy"].note == "1 calls a step; forward within 0.04, backward within 0.08 and by its slope"


def test_a_wrong_gradient_is_found_by_its_slope() -> None:
    row = trace(torch.ops.pilotkit_trial.wrong_gradient, x())["pilotkit_trial::wrong_gradient"]
    assert row.verdict == "FAIL"
    assert row.note.startswith("its gradient is wrong: the slope is ")


def test_a_wrong_value_is_found_by_the_reference() -> None:
    row = trace(torch.ops.pilotkit_trial.wrong_value, x())["pilotkit_trial::wrong_value"]
    assert row.verdict == "FAIL"
    assert row.note.startswith("differs from float64 on the CPU: by 0.00")


def test_without_a_reference_the_slope_still_speaks() -> None:
    row = trace(torch.ops.pilotkit_trial.one_dtype, x())["pilotkit_trial::one_dtype"]
    assert (row.verdict, row.note) == ("PASS", "no reference; its gradient is that of its own slope")


def test_a_missing_kernel_is_named_while_the_step_runs() -> None:
    found = OperatorTrace()
    with pytest.raises(NotImplementedError), found:
        torch.ops.pilotkit_trial.no_kernel(x())
    assert found.current == "pilotkit_trial::no_kernel"
    (operator,) = [item for item in found.operators.values() if item.name == found.current]
    row = check_operator(operator, allow_tf32=False)
    assert (row.verdict, row.note.startswith("raises NotImplementedError: ")) == ("FAIL", True)


@pytest.mark.parametrize(
    ("name", "verdict", "note"),
    [
        ("aten::mm", "PASS", "dispatched in the step"),
        ("pilotkit_trial::gone", "FAIL", "no operator of this name is registered; is its extension in the list?"),
        ("pilotkit_trial::no_kernel", "FAIL", "is registered, but has no kernel for CPU"),
        ("pilotkit_trial::right", "FAIL", "is registered, but was not used in the step"),
    ],
)
def test_a_kernel_that_the_user_counts_on(name: str, verdict: str, note: str) -> None:
    row = judge_kernel(name, seen=frozenset({"aten::mm"}), device_type="cpu")
    assert (row.verdict, row.note) == (verdict, note)


def test_what_draws_is_not_compared_and_kinks_are_no_fault() -> None:
    rows = trace(lambda a: nn.functional.dropout(a, 0.5).relu(), torch.zeros(64, 64, requires_grad=True))
    assert rows["aten::relu"].verdict == "PASS"
    random = [row for name, row in rows.items() if "dropout" in name or "bernoulli" in name]
    assert random
    assert all(row.verdict == "NOT RUN" and "draws random numbers" in row.note for row in random)


def test_arguments_that_are_written_into_are_compared() -> None:
    def work(a: torch.Tensor) -> None:
        torch._foreach_add_([a.detach()], [torch.ones_like(a)], alpha=2)

    assert trace(work, x())["aten::_foreach_add_"].verdict == "PASS"


def test_a_kernel_without_a_fixed_order_is_named() -> None:
    """`put_` without accumulation is torch's own example on the CPU."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.zeros(4).put_(torch.tensor([1, 1]), torch.tensor([2.0, 3.0]))
    finally:
        torch.use_deterministic_algorithms(before)
    assert kernels_without_order([str(item.message) for item in told] * 2) == ["put_"]


def test_attention_of_accelerators_has_its_definition_as_reference() -> None:
    """Stands for the device's kernel: its schema is what is read, as this machine cannot run it."""
    q, k, v = (x(1, 2, 8, 16, dtype=torch.float64) for _ in range(3))
    overload = torch.ops.aten._scaled_dot_product_flash_attention.default
    (got,) = reference_of(overload)(q, k, v, 0.0, True)
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(got, expected)
    plain = attention_by_definition(q, k, v, bias=None, is_causal=False, scale=None)
    torch.testing.assert_close(plain, nn.functional.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize(("name", "verdict"), [("flash", "PASS"), ("math", "PASS"), ("cudnn", "FAIL")])
@pytest.mark.filterwarnings("ignore")  # torch warns why each backend was not taken
def test_a_backend_is_really_called(name: str, verdict: str) -> None:
    row = check_backend(name, device=torch.device("cpu"), dtype=torch.float32, tolerance=1e-4)
    assert row.verdict == verdict, row


class WrongSquare(torch.autograd.Function):
    """Every operator in it is right; only the formula of its backward is not."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(value)
        return value * value

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (value,) = context.saved_tensors
        result: torch.Tensor = gradients[0] * value
        return result


class Net(nn.Module):
    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.first, self.last, self.wrong = nn.Linear(6, 8), nn.Linear(8, 1), wrong

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = self.first(inputs)
        hidden = WrongSquare.apply(hidden) if self.wrong else hidden * hidden
        return type("Output", (), {"loss": self.last(hidden).pow(2).mean() + 1})()


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_the_gradient_of_the_whole_model(wrong: bool) -> None:
    torch.manual_seed(0)
    row = check_gradient(Net(wrong=wrong), {"inputs": torch.randn(4, 6)})
    assert row.verdict == ("FAIL" if wrong else "PASS"), row
    if wrong:  # what comes after the fault is right, what comes before it is not
        assert "for first.weight to first.bias: slope " in row.note


def test_a_model_without_float64_is_said() -> None:
    class Single(nn.Module):
        def forward(self, inputs: torch.Tensor) -> Any:
            raise RuntimeError("expected Float but found Double")

    row = check_gradient(Single(), {"inputs": torch.ones(1)})
    assert row.verdict == "NOT RUN"
    assert "expected Float but found Double" in row.note


EXTENSIONS = {
    "trial_does_nothing": "import warnings\nwarnings.warn('no GPU library was found')\ndef fused(x):\n    return x\n",
    "trial_registers": (
        "import torch\nlibrary = torch.library.Library('trial_registers', 'DEF')\n"
        "library.define('twice(Tensor x) -> Tensor')\nlibrary.impl('twice', lambda x: x + x, 'CPU')\n"
        "def fused(x):\n    return torch.ops.trial_registers.twice(x)\n"
    ),
    "trial_broken": "raise ImportError('libcudart.so.12: cannot open shared object file')\n",
}


@pytest.fixture
def extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, code in EXTENSIONS.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in EXTENSIONS:
        module = sys.modules.pop(name, None)
        if hasattr(module, "library"):
            module.library._destroy()


@pytest.mark.usefixtures("extensions")
def test_an_extension_has_to_be_used_and_not_only_importable() -> None:
    nothing, registers, broken = load_extensions(list(EXTENSIONS))
    with OperatorTrace() as found, watch_calls([nothing, registers]):
        value = sys.modules["trial_does_nothing"].fused(torch.ones(3))
        sys.modules["trial_registers"].fused(value)
    seen = frozenset(operator.name for operator in found.operators.values())
    row = judge_extension(nothing, seen=seen, device_type="cpu")
    assert (row.verdict, row.note) == (
        "FAIL",
        "is imported, but no kernel of it ran in the step: 0 operators registered, none dispatched; no compiled "
        "function called (only Python: fused); importing it warned: no GPU library was found",
    )
    row = judge_extension(registers, seen=seen, device_type="cpu")
    assert (row.verdict, row.note) == ("PASS", "used in the step: operators trial_registers::twice")
    assert judge_extension(registers, seen=frozenset(), device_type="cpu").verdict == "FAIL"
    row = judge_extension(broken, seen=seen, device_type="cpu")
    assert row.note == "cannot be imported: ImportError: libcudart.so.12: cannot open shared object file"


def test_an_extension_that_was_built_again_is_another_member_of_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version and its operators are what they were; only the compiled module's bytes are not."""
    package = tmp_path / "trial_rebuilt"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '1.0'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for content in (b"first", b"again", b"first"):
        (package / "kernels.so").write_bytes(content)
        (extension,) = load_extensions(["trial_rebuilt"])
        found.append(extension.describe())
    del sys.modules["trial_rebuilt"]
    assert [item["version"] for item in found] == ["1.0"] * 3
    assert found[0] == found[2] != found[1]
    assert len(found[0]["digest"]) == 64


def test_a_device_without_kernels_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was tried there would end the process: what is said comes from the names of architectures alone."""
    stack = {**describe_stack(), "arch": "gfx950", "built_for": ["gfx90a", "gfx942"]}
    monkeypatch.setattr(phase, "describe_stack", lambda: stack)
    session = SimpleNamespace(config=None, device=SimpleNamespace(name="MI355X"))
    found = phase.qualify(session)  # type: ignore[arg-type]
    assert (found["stack"], found["device"], found["metrics"], found["rows"]) == (stack, "MI355X", {}, [])


def test_a_compiled_function_counts_as_used() -> None:
    import _struct

    (extension,) = load_extensions(["_struct"])
    with watch_calls([extension]):
        _struct.pack("i", 1)
    row = judge_extension(extension, seen=frozenset(), device_type="cpu")
    assert (row.verdict, row.note) == ("PASS", "used in the step: compiled functions pack")


@pytest.mark.parametrize(
    ("device_type", "needed", "verdict"),
    [
        ("rocm", b"libamdhip64.so.6", "PASS"),
        ("rocm", b"libcudart.so.12", "FAIL"),
        ("rocm", b"libstdc++.so.6", "FAIL"),
        ("cuda", b"libcudart.so.12", "PASS"),
        ("cuda", b"libstdc++.so.6", "FAIL"),
    ],
)
def test_an_extension_that_was_built_for_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device_type: str, needed: bytes, verdict: str
) -> None:
    """A module that stands for a compiled one: what is read of it is the names of libraries in its bytes."""
    package = tmp_path / "trial_compiled"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "kernels.so").write_bytes(b"\x7fELF...\0" + needed + b"\0")
    monkeypatch.syspath_prepend(str(tmp_path))
    (extension,) = load_extensions(["trial_compiled"])
    extension.native_calls.add("fused")
    row = judge_extension(extension, seen=frozenset(), device_type=device_type)
    del sys.modules["trial_compiled"]
    assert row.verdict == verdict, row
    if verdict == "FAIL":
        expected = f"is not built for {device_type}: none of its compiled modules (kernels.so) names a library of it"
        assert row.note == expected
