"""How fast a Hugging Face repository comes in: its files are listed with their sizes, and some of them are read.

Called by stage `budget`. Keeps nothing of what it reads and leaves the cache alone, so that it can be asked again.
"""

from __future__ import annotations

import importlib
import time
import urllib.request
from typing import Any, Literal

from pilotkit.errors import OutputError
from pilotkit.provenance.hub import TIMEOUT_SECONDS
from pilotkit.transfer import CHUNK_BYTES, Transfer

MAX_SECONDS = 20.0
"""A rate is known by then, and a stage that reads records is not to load a model."""
# Where weights lie as safetensors, transformers reads no other form of them.
OTHER_FORMS = (".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".ot", ".tflite")


def time_download(
    name: str, *, revision: str | None, repo_type: Literal["model", "dataset"], max_bytes: int
) -> Transfer:
    """Read the largest files first, up to `max_bytes` or `MAX_SECONDS`; the rest is taken as equally fast.

    Raises OutputError with the reason where the hub does not answer, or is not to be asked (HF_HUB_OFFLINE).
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        constants: Any = importlib.import_module("huggingface_hub.constants")
        headers = importlib.import_module("huggingface_hub.utils").build_hf_headers()
        if constants.HF_HUB_OFFLINE:
            raise OutputError(f"the download of {name} was not timed: HF_HUB_OFFLINE is set")
        api = hub.HfApi()
        ask = api.model_info if repo_type == "model" else api.dataset_info
        found = ask(name, revision=revision or "main", files_metadata=True, timeout=TIMEOUT_SECONDS)
        sizes = {item.rfilename: int(item.size or 0) for item in found.siblings or ()}
        wanted = _loaded(sizes) if repo_type == "model" else sizes
        done, started = 0, time.perf_counter()
        for file in sorted(wanted, key=lambda file: (-wanted[file], file)):
            address = hub.hf_hub_url(name, file, repo_type=repo_type, revision=found.sha)
            done += _read(address, headers=headers, limit=max_bytes - done, until=started + MAX_SECONDS)
            if done >= max_bytes or time.perf_counter() > started + MAX_SECONDS:
                break
        return Transfer(done, sum(wanted.values()), len(wanted), time.perf_counter() - started)
    except OutputError:
        raise
    except ImportError as error:
        raise OutputError(f"the download of {name} was not timed: huggingface_hub is not installed") from error
    except Exception as error:  # whatever its HTTP library raises; the name of the error is the reason
        raise OutputError(f"the download of {name} was not timed: {type(error).__name__}") from error


def _loaded(sizes: dict[str, int]) -> dict[str, int]:
    if not any(file.endswith(".safetensors") for file in sizes):
        return sizes
    return {file: size for file, size in sizes.items() if not file.endswith(OTHER_FORMS)}


def _read(address: str, *, headers: dict[str, str], limit: int, until: float) -> int:
    """Bytes that came, `limit` at most and until the clock says `until`.

    The token goes to the hub, and not where the hub sends us for the bytes.
    """
    secret = {name: value for name, value in headers.items() if name.lower() == "authorization"}
    plain = {name: value for name, value in headers.items() if name not in secret}
    request = urllib.request.Request(address, headers=plain)  # noqa: S310 - the hub's own address
    for name, value in secret.items():
        request.add_unredirected_header(name, value)
    done = 0
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        while done < limit and time.perf_counter() < until and (chunk := response.read(min(CHUNK_BYTES, limit - done))):
            done += len(chunk)
    return done
