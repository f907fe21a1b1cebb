"""`stage=restore` from the command line: other shapes, a folder of checkpoints, and the verification without torch."""

from __future__ import annotations

import json

SMALL = (
    "model.kwargs.num_layers=1",
    "model.kwargs.hidden_size=32",
    "train.seq_len=32",
    "train.num_eval_batches=1",
    "restore.num_steps=2",
)


def _record(folder, stage):
    (path,) = (folder / "outputs" / "default" / stage).glob("*/record.json")
    return json.loads(path.read_text())


def test_other_shapes_and_what_verifies_afterwards(pilotkit_cli, tmp_path):
    shapes = ("restore.world_sizes=[1,2,4]", "restore.strategies=[ddp,fsdp]", "restore.async_save=true")
    done = pilotkit_cli("stage=restore", *SMALL, *shapes, timeout=280)
    assert done.returncode == 0, done.stderr
    record = _record(tmp_path, "restore")
    # Saved while two more steps were trained, which the comparison of the restored state would show.
    metrics = record["metrics"]
    assert 0 < metrics["checkpoint_blocking_seconds"] < metrics["checkpoint_save_seconds"]
    rows = {row["component"]: (row["verdict"], row["note"]) for row in record["details"]["comparison"]}
    for name in ("ddp-1 to ddp-2", "ddp-2 to ddp-1", "ddp-2 to fsdp-2", "fsdp-2 to ddp-2"):
        assert rows[name][0] == "PASS", rows[name]
        assert "the next 32 rows the same, in order" in rows[name][1]
    assert rows["ddp-1 to ddp-4"] == ("NOT RUN", "more ranks than devices: 2 visible")
    (checkpoints,) = (tmp_path / "outputs/default/restore").glob("*/checkpoints")
    verified = pilotkit_cli("stage=checkpoint_verify", f"restore.path={checkpoints / 'restore'}", "name=v")
    assert verified.returncode == 0, verified.stderr
    assert "restore: PASS, step 2, 6 files" in verified.stdout
    with open(checkpoints / "restore" / "__1_0.distcp", "ab") as stream:
        stream.write(b"x")
    refused = pilotkit_cli("stage=checkpoint_verify", f"restore.path={checkpoints / 'restore'}", "name=v")
    assert refused.returncode == 1
    assert "__1_0.distcp: " in refused.stderr
    assert "bytes, written with" in refused.stderr
    other = ("optimizer.lr=0.1", "precision=bf16")
    changed = pilotkit_cli("stage=restore", *SMALL, f"restore.path={checkpoints / 'ddp-2'}", *other)
    assert changed.returncode == 2
    assert "precision.param_dtype=bfloat16" in changed.stderr
    assert "float32, as the checkpoint was saved with" in changed.stderr
    assert "optimizer.lr=0.1" in changed.stderr
    assert "restore.allow_changes=[optimizer.lr]" in changed.stderr


def test_a_stranger_reads_what_two_ranks_share(pilotkit_cli, tmp_path):
    """FSDP: shards of both ranks, put together by torch's own program, are the export bit for bit."""
    sharded = ("hardware.device_count=2", "parallelism=fsdp", "parallelism.nproc_per_node=2", "restore.export=true")
    done = pilotkit_cli("stage=restore", *SMALL, *sharded, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = {row["component"]: row for row in _record(tmp_path, "restore")["details"]["comparison"]}
    assert rows["export: every tensor"]["verdict"] == "PASS"
    assert rows["export: torch's own consolidation"]["verdict"] == "PASS"
    assert "bit for bit" in rows["export: torch's own consolidation"]["note"]
    assert rows["export: evaluation by the plain model"]["verdict"] == "NOT RUN"  # no class of it is known outside


def test_verify_needs_a_path_that_is_there(pilotkit_cli):
    for path in ([], ["restore.path=nowhere"]):
        done = pilotkit_cli("stage=checkpoint_verify", *path)
        assert done.returncode == 2
        assert "restore.path" in done.stderr
