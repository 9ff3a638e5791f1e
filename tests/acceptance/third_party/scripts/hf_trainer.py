"""After transformers' `run_clm.py`: its Trainer, on a model of a tiny configuration; plain, torchrun and accelerate."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __init__(self, fault):
        self.fault = fault

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.fault == "column" and index == 5:  # of two ranks, the second one's
            raise KeyError("input_ids")
        ids = torch.full((8,), index % 16)
        return {"input_ids": ids, "labels": ids}


class SometimesNaN(GPT2LMHeadModel):
    def forward(self, input_ids=None, labels=None):
        found = super().forward(input_ids=input_ids, labels=labels)
        found.loss = found.loss * float("nan")
        return found


fault = sys.argv[1] if len(sys.argv) > 1 else ""
config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=1)
model = (SometimesNaN if fault == "nan" else GPT2LMHeadModel)(config)
args = TrainingArguments(
    output_dir="out",
    max_steps=4,
    per_device_train_batch_size=1,
    logging_steps=1,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    train_sampling_strategy="sequential",
    logging_nan_inf_filter=False,
)
Trainer(model=model, args=args, train_dataset=Texts(fault)).train()
