"""Train a small classifier with Lightning's Trainer, its loader a spawned process. Knows nothing of pilotkit."""

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def _loss(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start-method")
    parser.add_argument("--rows", type=int, default=256)
    args = parser.parse_args()
    x = torch.randn(args.rows, 16)
    rows = TensorDataset(x, (x.sum(1) > 0).long())
    train = DataLoader(
        rows,
        batch_size=8,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=args.start_method,
        persistent_workers=args.workers > 0,
    )
    trainer = lightning.Trainer(accelerator="cpu", devices=args.devices, max_epochs=1, strategy="ddp", logger=False)
    module = Classifier(hidden=8)
    trainer.fit(module, train, DataLoader(rows, batch_size=64))
    trainer.validate(module, DataLoader(rows, batch_size=64))
