"""Accelerate and its own checkpoints, saved in the middle of an epoch: dropout, accumulation, shuffled rows.

`--resume=plain` is what Accelerate's documentation says: `load_state`, then `skip_first_batches`. Its loader draws a
seed from torch's generator whenever rows begin, also in the middle; `--resume=exact` sets the generator back then.
`--sampler=random` shuffles by a generator and not by the number of the epoch. `--forget` leaves something out.
"""

import argparse
import os

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn

from pilotkit.train.run_trace import RunTrace, asked

parser = argparse.ArgumentParser()
parser.add_argument("--resume", choices=["plain", "exact"], default="exact")
parser.add_argument("--sampler", choices=["seedable", "random"], default="seedable")
parser.add_argument("--forget", choices=["", "position", "random"], default="")
parser.add_argument("--epoch-steps", type=int, default=3)
options = parser.parse_args()
order = asked()
assert order is not None
assert order.save_every_steps % options.epoch_steps, "saved in the middle of an epoch"
ACCUMULATION = 2

torch.use_deterministic_algorithms(True)
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=ACCUMULATION,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=options.sampler == "seedable"),
)
set_seed(0, device_specific=False)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * ACCUMULATION * options.epoch_steps * accelerator.num_processes

    def __getitem__(self, index):
        return torch.full((8,), float(index))


plain = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
loader = torch.utils.data.DataLoader(Rows(), batch_size=2, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(plain, optimizer, loader, scheduler)
trace = RunTrace(model, optimizer, scheduler=scheduler, scaler=accelerator.scaler)


def save(step):
    """Aside, and renamed: `save_state` writes one file after the other, and a kill leaves some of them."""
    path = order.checkpoints / f"step-{step:06d}"
    accelerator.save_state(str(path.with_suffix(".part")))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.rename(path.with_suffix(".part"), path)
    accelerator.wait_for_everyone()


def load():
    found = sorted(order.checkpoints.glob("step-" + "[0-9]" * 6))
    if not found:
        return 0
    if options.forget == "random":
        (found[-1] / f"random_states_{accelerator.process_index}.pkl").unlink()
    accelerator.load_state(str(found[-1]))
    return int(found[-1].name.removeprefix("step-"))


step = load()
trace.resumed(step)
epoch, num_done = divmod(step * ACCUMULATION, len(loader))
if options.forget == "position":
    num_done = 0
while step < order.num_steps:
    loader.set_epoch(epoch)
    generator = torch.get_rng_state()
    for batch in accelerator.skip_first_batches(loader, num_done) if num_done else loader:
        if num_done and options.resume == "exact":
            torch.set_rng_state(generator)
        num_done = 0
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        step += 1
        if step % order.save_every_steps == 0:
            save(step)
        trace.step(step, loss=loss.detach())
        if step == order.num_steps:
            break
    epoch += 1
accelerator.end_training()
