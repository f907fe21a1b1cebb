"""What keeps a model from being traced, in words that say what to do. Raised by `trace`, told by the stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from pilotkit.errors import PilotkitError
from pilotkit.estimate.recorder import ReadsAValue

_CAUSES = (DataDependentOutputException, DynamicOutputShapeException, ReadsAValue)
_NO_KERNEL_WORDS = ("no fake impl", "no meta kernel", "meta kernel", "There was no fake", "NotImplementedError")


A_STEP = "a step"


class EstimateError(PilotkitError):
    """The model cannot be traced without running it; says which part, and what to pass or register."""


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn what fake tensors have to say into an EstimateError; errors that explain themselves pass through."""
    try:
        yield
    except PilotkitError:
        raise
    except Exception as error:
        hint = "; estimate.fallback=analytic counts what can be counted" if doing == A_STEP else ""
        raise EstimateError(_words(error, doing=doing) + hint) from error


def compiler_words(error: EstimateError) -> str:
    """What torch's compiler had to say, where it is what failed; empty where it is not."""
    for cause in _chain(error.__cause__):
        if type(cause).__module__ == "torch._dynamo.exc":
            lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
            # A backend's own error stands in the second line, below the name of the backend.
            at = 1 if lines and lines[0].startswith("backend=") and len(lines) > 1 else 0
            return f"{type(cause).__name__}: {lines[at]}" if lines else type(cause).__name__
    return ""


def _words(error: BaseException, *, doing: str) -> str:
    chain = list(_chain(error))
    value = next((cause for cause in chain if isinstance(cause, _CAUSES)), None)
    if value is not None:
        what = f"operator {value.func}" if hasattr(value, "func") else str(value)
        return (
            f"{doing} needs the values of tensors ({what}), and an estimate has only their shapes: branches or shapes "
            "that depend on data (.item(), nonzero, masks as indices, per-expert loops). Pass a factory whose forward "
            "does without, or measure instead: pilotkit stage=measure"
        )
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if _wants_accelerator(text):
        return (
            f"{doing} allocates on an accelerator, which is not here ({text}). Leave the device to pilotkit: build the "
            "module without device= and .cuda(), it is moved afterwards"
        )
    if any(isinstance(cause, (UnsupportedOperatorException, UnsupportedFakeTensorException)) for cause in chain) or any(
        word in text for word in _NO_KERNEL_WORDS
    ):
        return (
            f"{doing} calls an operator that has no fake implementation ({text}). Register one with "
            "torch.library.register_fake, which gives the shapes of its results"
        )
    if isinstance(error, FileNotFoundError):
        return f"{doing} reads a file that is not there ({error.filename or text}); give the right path in model.kwargs"
    return f"{doing} failed: {type(error).__name__}: {text}"


def _wants_accelerator(text: str) -> bool:
    words = (
        "not linked with support for cuda",
        "not compiled with CUDA",
        "No CUDA GPUs",
        "Found no NVIDIA driver",
        "'CUDA' backend",
        "CUDA error",
        "HIP error",
    )
    return any(word in text for word in words)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
