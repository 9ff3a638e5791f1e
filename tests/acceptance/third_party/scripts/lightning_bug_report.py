"""After Lightning's `bug_report_model.py`; with `ddp`, Lightning starts the second process itself."""

import os
import sys

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset


class Bug(BoringModel):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2 and "bug" in sys.argv and self.global_rank == self.trainer.world_size - 1:
            raise RuntimeError("expected scalar type Float but found Half")
        if batch_idx == 2 and "kill" in sys.argv and self.global_rank == self.trainer.world_size - 1:
            os.kill(os.getpid(), 9)
        loss = super().training_step(batch, batch_idx)["loss"]
        self.log("train_loss", loss * float("nan") if "nan" in sys.argv else loss, prog_bar=True)
        return loss


def run():
    ddp = {"strategy": "ddp", "devices": 2} if "ddp" in sys.argv else {"devices": 1}
    loader = torch.utils.data.DataLoader(RandomDataset(32, 64), batch_size=2)
    trainer = Trainer(
        default_root_dir=os.getcwd(),
        limit_train_batches=6,
        limit_val_batches=0,
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **ddp,
    )
    trainer.fit(Bug(), train_dataloaders=loader)


if __name__ == "__main__":
    run()
