"""`transformers.Trainer` with its own checkpoints; dropout, accumulation and shuffled rows."""

import os

os.environ["ACCELERATE_USE_CPU"] = "true"

import torch
import transformers
from torch import nn
from transformers.trainer_utils import get_last_checkpoint

from pilotkit.train.callbacks.transformers_trainer import TrainerTrace
from pilotkit.train.run_trace import asked


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"x": torch.full((8,), float(index)), "labels": torch.tensor(index % 2)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 2), nn.Dropout(0.2)

    def forward(self, x, labels):
        logits = self.linear(self.dropout(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


order = asked()
transformers.set_seed(0)
arguments = transformers.TrainingArguments(
    str(order.checkpoints),
    max_steps=order.num_steps,
    save_strategy="steps",
    save_steps=order.save_every_steps,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    logging_strategy="no",
)
newest = get_last_checkpoint(str(order.checkpoints)) if order.checkpoints.is_dir() else None
trainer = transformers.Trainer(Net(), arguments, train_dataset=Rows(), callbacks=[TrainerTrace()])
trainer.train(resume_from_checkpoint=newest)
