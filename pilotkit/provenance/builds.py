"""Whether a build of torch has kernels for a device, by the names of architectures alone. Torch-free: the worker asks
before it touches the device, and the driver when it judges the set.

Sources: CUDA programming guide, "Binary Compatibility" and "PTX Compatibility"; torch.cuda.get_arch_list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def has_kernels(arch: str, kernels: Sequence[str]) -> bool:
    """Exactly, within one major version of CUDA (binary compatibility), or by PTX of an older one (`compute_80`)."""
    if arch in kernels:
        return True
    own = _capability(arch)
    if own is None:
        return False
    for kernel in kernels:
        if re.fullmatch(rf"{arch}[af]", kernel):  # for this one architecture, or its family
            return True
        other = re.fullmatch(r"(sm|compute)_(\d+)(\d)", kernel)
        if other is None or (other[1] == "sm" and int(other[2]) != own[0]):
            continue
        if (int(other[2]), int(other[3])) <= own:
            return True
    return False


def fits(arch: str, wanted: str) -> bool:
    """Whether a device of `arch` is what the application wants: `sm_90` or `gfx942` alone, `sm_80+` and any newer."""
    if not wanted.endswith("+"):
        return arch == wanted
    own, least = _capability(arch), _capability(wanted.removesuffix("+"))
    return own is not None and least is not None and own >= least


def _capability(arch: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    return (int(found[1]), int(found[2])) if found else None
