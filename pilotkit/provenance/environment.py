"""Environment variables that change what a run computes, how fast, or in how much memory. Called for the lock.

Only names of a fixed list are ever looked at, and of these none that could hold a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Sources: torch docs, "CUDA Environment Variables", "Torch Environment Variables"; NCCL user guide, "Environment
# Variables"; ROCm docs, "GPU isolation techniques"; OpenMP 5.2, chapter 21.
_ALLOWED = re.compile(
    r"(CUDA|HIP|ROCR)_VISIBLE_DEVICES|CUDA_(DEVICE_ORDER|LAUNCH_BLOCKING|MODULE_LOADING|DEVICE_MAX_CONNECTIONS)"
    r"|CUBLAS_WORKSPACE_CONFIG|CUBLASLT_WORKSPACE_SIZE|NVIDIA_TF32_OVERRIDE|HIPBLASLT_\w+|HIPBLAS_\w+|MIOPEN_FIND_\w+"
    r"|PYTORCH_(CUDA_|HIP_)?ALLOC_CONF|PYTORCH_NO_CUDA_MEMORY_CACHING|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
    r"|TORCH_(CUDNN|BLAS|ROCM|CPP)_\w+|TORCH_NCCL_\w+|TORCHDYNAMO_DISABLE|TORCHINDUCTOR_(MAX_AUTOTUNE|FREEZING)\w*"
    r"|NCCL_\w+|RCCL_\w+|GLOO_\w+|HSA_\w+|GPU_MAX_HW_QUEUES|ATEN_CPU_CAPABILITY|DNNL_\w+|ONEDNN_\w+"
    r"|(OMP|MKL|KMP|OPENBLAS|NUMEXPR)_\w+|MALLOC_\w+|LD_PRELOAD|PYTHONHASHSEED"
    r"|HF_HUB_OFFLINE|HF_DATASETS_OFFLINE|TRANSFORMERS_OFFLINE|TOKENIZERS_PARALLELISM"
)
_SECRET = re.compile(r"TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)


def read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of the list that are set, by name."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if _ALLOWED.fullmatch(name) and not _SECRET.search(name) and not _SECRET.search(value)
    }
