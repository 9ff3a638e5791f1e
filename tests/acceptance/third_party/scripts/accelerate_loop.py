"""After accelerate's `nlp_example.py`: its prepared loop, and `gather_for_metrics` at the end of an epoch."""

import sys
import time

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader([(torch.ones(4), i % 2) for i in range(16)], batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, (x, y) in enumerate(loader):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step == 2 and accelerator.process_index == accelerator.num_processes - 1 and len(sys.argv) > 1:
        if sys.argv[1] == "hang":
            time.sleep(1000)
        raise AssertionError(f"tokenizer has no pad token, {sys.argv[1]}")
    accelerator.print(f"step {step}: loss {loss.item():.3f}")
print(accelerator.gather_for_metrics(torch.ones(2)).sum())
accelerator.end_training()
