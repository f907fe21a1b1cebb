"""Read an export as a stranger would: with torch and safetensors, and without pilotkit or the code that trained.

    python -I read_export.py EXPORT [--checkpoint CHECKPOINT] [--model FILE.py:BUILD] [--rtol 1e-5]

A script, not a module: nothing imports it, and it refuses to run where pilotkit has been imported. It lists and checks
every tensor, compares with torch's own consolidation of the sharded checkpoint, and, where it can build the plain model
(Hugging Face's class from config.json, or BUILD of a file that is given), loads the weights and evaluates. Prints one
line of JSON, a list of `{"component", "verdict", "note"}`; exit code 1 when a verdict is FAIL.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

Row = dict[str, str]


def main() -> int:
    """Read, compare, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--rtol", type=float, default=1e-5)
    options = parser.parse_args()
    description = json.loads((options.export / "export.json").read_text(encoding="utf-8"))
    weights, row = _read(options.export, description)
    rows = [row]
    if options.checkpoint is not None:
        rows.append(_consolidated(options.checkpoint, weights, description["tied"]))
    rows.append(_evaluate(options, description, weights))
    assert not any(name.partition(".")[0] == "pilotkit" for name in sys.modules), "this reader has to be a stranger"
    print(json.dumps(rows))  # noqa: T201 - what the caller reads
    return int(any(row["verdict"] == "FAIL" for row in rows))


def _read(folder: Path, description: dict[str, Any]) -> tuple[dict[str, torch.Tensor], Row]:
    from safetensors.torch import load_file

    name = "export: every tensor"
    try:
        weights = load_file(folder / "model.safetensors")
    except Exception as error:
        return {}, _row(name, "FAIL", f"model.safetensors cannot be read: {error}")
    expected = description["tensors"]
    wrong = [f"{key}: only on one side" for key in sorted(expected.keys() ^ weights.keys())]
    for key in sorted(expected.keys() & weights.keys()):
        tensor = weights[key]
        content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        found = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        wrong += [f"{key}: its {what} differs" for what in found if found[what] != expected[key][what]]
        if not tensor.isfinite().all():
            wrong.append(f"{key}: holds values that are not finite")
    if wrong:
        return weights, _row(name, "FAIL", "; ".join(wrong[:3]))
    num_bytes = sum(tensor.nbytes for tensor in weights.values())
    return weights, _row(name, "PASS", f"{len(weights)} tensors, {num_bytes} bytes, each with its digest")


def _consolidated(checkpoint: Path, weights: dict[str, torch.Tensor], tied: dict[str, str]) -> Row:
    """torch's own way from shards to one file, beside the export."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    name = "export: torch's own consolidation"
    with tempfile.TemporaryDirectory() as folder:
        dcp_to_torch_save(checkpoint, Path(folder) / "whole.pt")
        whole = torch.load(Path(folder) / "whole.pt", weights_only=True)
    saved = {key.removeprefix("model."): value for key, value in whole.items() if key.startswith("model.")}
    wrong = sorted(saved.keys() ^ (weights.keys() | tied.keys()))
    wrong += [key for key in sorted(saved.keys() & weights.keys()) if not torch.equal(saved[key], weights[key])]
    wrong += [key for key, kept in tied.items() if key in saved and not torch.equal(saved[key], weights[kept])]
    if wrong:
        return _row(name, "FAIL", f"{len(wrong)} of {len(saved)} tensors differ, first {wrong[0]}")
    return _row(name, "PASS", f"{len(saved)} tensors, bit for bit")


def _evaluate(options: argparse.Namespace, description: dict[str, Any], weights: dict[str, torch.Tensor]) -> Row:
    from safetensors.torch import load_file

    name = "export: evaluation by the plain model"
    model = _plain_model(options)
    if model is None:
        return _row(name, "NOT RUN", "no plain class is known for this model: run the reader with --model")
    tied = {key: weights[kept] for key, kept in description["tied"].items()}
    result = model.load_state_dict({**weights, **tied}, strict=False)
    names = [*result.missing_keys, *result.unexpected_keys]
    if names:
        return _row(name, "FAIL", f"{len(names)} names do not fit the plain class, first {names[0]}")
    model.eval()
    with torch.no_grad():
        loss = float(model(**load_file(options.export / "evaluation.safetensors")).loss)
    expected = float(description["loss"])
    note = f"loss {loss:.6g}, {expected:.6g} in training (tolerance {options.rtol})"
    return _row(name, "PASS" if math.isclose(loss, expected, rel_tol=options.rtol) else "FAIL", note)


def _plain_model(options: argparse.Namespace) -> Any:
    if options.model:
        path, _, function = options.model.rpartition(":")
        spec = importlib.util.spec_from_file_location("plain_model", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, function)()
    if (options.export / "config.json").is_file():
        import transformers

        config = transformers.AutoConfig.from_pretrained(options.export)
        plain_class: Any = transformers.AutoModelForCausalLM
        return plain_class.from_config(config)
    return None


def _row(component: str, verdict: str, note: str) -> Row:
    return {"component": component, "verdict": verdict, "note": note}


if __name__ == "__main__":
    sys.exit(main())
