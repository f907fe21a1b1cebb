"""Train a causal language model on lines of text, as transformers' own examples do it. Knows nothing of pilotkit."""

import sys
from dataclasses import dataclass, field

from datasets import load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class ModelArguments:
    model_type: str = field(default="gpt2")
    n_embd: int = 32


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "a text file"})
    block_size: int = 32


def main() -> None:
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    raw = load_dataset("text", data_files={"train": data_args.train_file, "validation": data_args.train_file})
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(raw["train"]["text"], trainers.WordLevelTrainer(special_tokens=["[UNK]", "[PAD]"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    with training_args.main_process_first(desc="tokenize"):
        rows = raw.map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=data_args.block_size),
            batched=True,
            remove_columns=["text"],
        )
    config = AutoConfig.for_model(
        model_args.model_type,
        vocab_size=len(tokenizer),
        n_embd=model_args.n_embd,
        n_layer=1,
        n_head=2,
        n_positions=64,
    )
    trainer = Trainer(
        model=AutoModelForCausalLM.from_config(config),
        args=training_args,
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    if training_args.do_train:
        result = trainer.train()
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_state()
    if training_args.do_eval:
        trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    sys.exit(main())
