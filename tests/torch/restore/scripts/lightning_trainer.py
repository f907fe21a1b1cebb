"""Lightning's Trainer with its own checkpoints, saved at the end of an epoch: its rows are not shuffled."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from pilotkit.train.callbacks.lightning_trainer import LightningTrace
from pilotkit.train.run_trace import asked

order = asked()


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * order.save_every_steps

    def __getitem__(self, index):
        return {"x": torch.full((8,), float(index)), "labels": torch.tensor(index % 2)}


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def training_step(self, batch, batch_index):
        return nn.functional.cross_entropy(self.linear(batch["x"]), batch["labels"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]


pl.seed_everything(0)
saver = ModelCheckpoint(order.checkpoints, every_n_train_steps=order.save_every_steps, save_top_k=-1)
found = sorted(order.checkpoints.glob("*.ckpt"))
trainer = pl.Trainer(
    max_steps=order.num_steps,
    accelerator="cpu",
    callbacks=[saver, LightningTrace()],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=order.checkpoints,
)
trainer.fit(Net(), torch.utils.data.DataLoader(Rows(), batch_size=2), ckpt_path=found[-1] if found else None)
