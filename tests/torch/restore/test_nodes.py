"""Two ranks whose folders are not the same one, as on two nodes without a shared disk."""

from __future__ import annotations

import multiprocessing
import socket
from pathlib import Path
from typing import Any


def _prepare(rank: int, folder: str, answers: Any) -> None:
    import torch.distributed as dist

    from pilotkit.errors import CheckpointError
    from pilotkit.records import checkpoint_store
    from pilotkit.train import saving

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    path = Path(folder, f"node-{rank}", "step-0000000001")
    part = checkpoint_store.part_of(path)
    try:
        with saving.nothing_left(part, rank=rank):
            saving.prepare(path, part=part, rank=rank)
        answers.put("")
    except CheckpointError as error:
        answers.put(str(error))
    dist.destroy_process_group()


def test_a_node_that_does_not_see_the_folder_is_named_before_anything_is_written(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_prepare, args=(rank, str(tmp_path), answers)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    found = [answers.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join(60)
    assert all(f"{socket.gethostname()} does not see the folder that rank 0 made" in text for text in found), found
    assert all("needs one folder that all of them share" in text for text in found)
    assert not list(tmp_path.glob("node-*/.*"))
