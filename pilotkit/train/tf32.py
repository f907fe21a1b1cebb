"""Settings of TF32 that somebody made before a run's `precision` does: in the environment, or in a module's import.

Called by the worker's build before it sets the switches, so that what is taken back is told. Sets nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

TORCH_VARIABLE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
NVIDIA_VARIABLE = "NVIDIA_TF32_OVERRIDE"
# Fresh, torch has "none" or "ieee" for products, and "tf32" below cuDNN: those two say nothing of anybody's wish.
PRODUCTS = ("cuda.matmul", "mkldnn", "mkldnn.matmul")
CONVOLUTIONS = ("cudnn", "cudnn.conv", "cudnn.rnn")


def settings_against(precision: str, *, allow_tf32: bool, environ: Mapping[str, str] = os.environ) -> list[str]:
    """One sentence if the process was set otherwise than `precision` (an option's name) is about to set it, another one
    for a variable that stands above every switch."""
    found = [*_older(allow_tf32, environ), *_newer(allow_tf32)]
    told = []
    if found:
        told.append(
            f"{', '.join(found)} was set here, and precision={precision} took it back: TF32 is "
            f"{'on' if allow_tf32 else 'off'}; the option to choose is precision={'fp32' if allow_tf32 else 'tf32'}"
        )
    if allow_tf32 and environ.get(NVIDIA_VARIABLE) == "0":
        told.append(
            f"{NVIDIA_VARIABLE}=0 keeps TF32 off in NVIDIA's libraries, whatever precision={precision} says: unset it, "
            "or take precision=fp32"
        )
    return told


def _older(allow_tf32: bool, environ: Mapping[str, str]) -> list[str]:
    """The switches that torch has had since 1.12; not to be read once newer ones disagree with them."""
    found = []
    try:
        products = torch.get_float32_matmul_precision()
        if products == "medium" or (products == "high" and not allow_tf32):
            by_variable = products == "high" and environ.get(TORCH_VARIABLE) == "1"
            found.append(f"{TORCH_VARIABLE}=1" if by_variable else f"torch.set_float32_matmul_precision({products!r})")
        if allow_tf32 and not torch.backends.cudnn.allow_tf32:
            found.append("torch.backends.cudnn.allow_tf32=False")
    except RuntimeError:
        return []
    return found


def _newer(allow_tf32: bool) -> list[str]:
    """`fp32_precision` of torch 2.9 and later: of everything, of a backend, of its operators."""
    everything = _value("")
    if _is_against(everything, allow_tf32):
        return [f"torch.backends.fp32_precision={everything!r}"]
    try:
        torch.get_float32_matmul_precision()
        products: tuple[str, ...] = ()  # told by the older switch
    except RuntimeError:
        products = PRODUCTS
    names = [name for name in products if _value(name) != "ieee"]
    names += [name for name in CONVOLUTIONS if _value(name) != "tf32" or name == "cudnn"]
    found = [(name, _value(name)) for name in names if _is_against(_value(name), allow_tf32)]
    return [f"torch.backends.{name}.fp32_precision={value!r}" for name, value in found]


def _is_against(value: str, allow_tf32: bool) -> bool:
    return value not in ("none", "tf32" if allow_tf32 else "ieee")


def _value(name: str) -> str:
    place: Any = torch.backends
    for part in filter(None, name.split(".")):
        place = getattr(place, part, None)
    return str(getattr(place, "fp32_precision", "none"))
