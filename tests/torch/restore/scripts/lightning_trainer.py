"""Lightning's Trainer with its own checkpoints, saved at the end of an epoch: its rows are not shuffled.

`--middle` makes the epoch a step longer than what is saved, and adds dropout. `--loader=stateful` is what Lightning
asks of a loader then, `--generators` what its checkpoints do not hold.
"""

import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from pilotkit.train.callbacks.lightning_trainer import LightningTrace
from pilotkit.train.run_trace import asked
from pilotkit.train.seeding import random_state, set_random_state

parser = argparse.ArgumentParser()
parser.add_argument("--middle", action="store_true")
parser.add_argument("--loader", choices=["plain", "stateful"], default="plain")
parser.add_argument("--generators", action="store_true")
options = parser.parse_args()
order = asked()
CPU = torch.device("cpu")


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * (order.save_every_steps + options.middle)

    def __getitem__(self, index):
        return {"x": torch.full((8,), float(index)), "labels": torch.tensor(index % 2)}


class StatefulLoader(torch.utils.data.DataLoader):
    """Shuffled by the number of the epoch; knows how many batches of it were handed out."""

    def __init__(self, rows, **kwargs):
        self.order, self.epoch, self.num_done = torch.Generator(), 0, 0
        super().__init__(rows, sampler=torch.utils.data.RandomSampler(rows, generator=self.order), **kwargs)

    def __iter__(self):
        self.order.manual_seed(self.epoch)
        first = self.num_done
        for index, batch in enumerate(super().__iter__()):
            if index < first:
                continue
            self.num_done = index + 1
            if self.num_done == len(self):  # told before the last batch is trained on: a save may follow that one
                self.epoch, self.num_done = self.epoch + 1, 0
            yield batch

    def state_dict(self):
        return {"epoch": self.epoch, "num_done": self.num_done}

    def load_state_dict(self, state):
        self.epoch, self.num_done = state["epoch"], state["num_done"]


class Generators(pl.Callback):
    """Saved with the rest; set when training goes on, and once more when the loader has drawn its seed."""

    loaded = None

    def state_dict(self):
        return random_state(CPU)

    def load_state_dict(self, state):
        self.loaded = state

    def on_train_start(self, trainer, pl_module):
        if self.loaded is not None:
            set_random_state(self.loaded, device=CPU)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.loaded is not None:
            set_random_state(self.loaded, device=CPU)
            self.loaded = None


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 2), nn.Dropout(0.2 if options.middle else 0.0)

    def training_step(self, batch, batch_index):
        return nn.functional.cross_entropy(self.linear(self.dropout(batch["x"])), batch["labels"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]


pl.seed_everything(0)
saver = ModelCheckpoint(order.checkpoints, every_n_train_steps=order.save_every_steps, save_top_k=-1)
found = sorted(order.checkpoints.glob("*.ckpt"))
trainer = pl.Trainer(
    max_steps=order.num_steps,
    accelerator="cpu",
    callbacks=[*([Generators()] if options.generators else []), saver, LightningTrace()],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=order.checkpoints,
)
loader = (StatefulLoader if options.loader == "stateful" else torch.utils.data.DataLoader)(Rows(), batch_size=2)
trainer.fit(Net(), loader, ckpt_path=found[-1] if found else None)
