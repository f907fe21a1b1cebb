"""A user's script, as docs/restore.md asks for one: DDP, its own checkpoint, and what `--forget` leaves out of that."""

import argparse
import os
import random
import tempfile
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pilotkit.train.run_trace import RunTrace, asked

parser = argparse.ArgumentParser()
parser.add_argument("--forget", default="")
options = parser.parse_args()
order = asked()
assert order is not None

torch.use_deterministic_algorithms(True)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
model = DistributedDataParallel(plain)
torch.manual_seed(1 + rank)
random.seed(1 + rank)
numpy.random.seed(1 + rank)  # never drawn from, but it has a state, and every process makes up another one
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
trace = RunTrace(model, optimizer, scheduler=scheduler)
path = order.checkpoints / f"checkpoint-{rank}.pt"


def save(step: int) -> None:
    state = {
        "step": step,
        "model": plain.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
    }
    state.pop(options.forget, None)
    order.checkpoints.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=order.checkpoints, delete=False) as aside:
        torch.save(state, aside)
    os.replace(aside.name, path)


def load() -> int:
    if not Path(path).exists() or options.forget == "everything":
        return 0
    state = torch.load(path, weights_only=True)
    plain.load_state_dict(state["model"])
    if "optimizer" in state:
        optimizer.load_state_dict(state["optimizer"])
    if "scheduler" in state:
        scheduler.load_state_dict(state["scheduler"])
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    return state["step"]


step = load()
trace.resumed(step)
while step < order.num_steps:
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
    loss = model(rows).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    random.random()
    step += 1
    if step % order.save_every_steps == 0:
        save(step)
    trace.step(step, loss=loss.detach())
dist.destroy_process_group()
