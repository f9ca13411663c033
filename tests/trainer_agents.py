"""Agents inside other libraries' trainers: ``torchrun --nproc-per-node 2 trainer_agents.py OUT``.

Agent 0 writes to OUT, for each trainer, the digests of all agents' models after the last round, and how far they were apart
before it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import docom
from docom.optim import Decentralized, alone
from docom.optim.parameters import digest

Make = Callable[[nn.Module], torch.optim.Optimizer]


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def averaged(module: nn.Module) -> Decentralized:
    """Local AdamW and plain averages: alone it is AdamW itself."""
    method = docom.DiLoCo(lr=1.0, momentum=0.0)
    return Decentralized(module.parameters(), method, topology="complete", inner=adam(module), every=3)


class Tokens(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, seed: int) -> None:
        self.ids = torch.randint(0, 32, (64, 8), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def hugging_face(make: Make, data: int, steps: int = 9, resume: str | None = None, out: str | None = None) -> Tensor:
    """A small GPT-2 with random weights, trained by `transformers.Trainer` with clipping and a schedule."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 8}
    quiet: dict[str, Any] = {
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    model = GPT2LMHeadModel(GPT2Config(**shape, **quiet))
    optimizer = make(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
    folder = out or tempfile.mkdtemp()
    with alone():  # the arguments look for a launcher too
        settings = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True,
            save_strategy="steps" if out else "no", save_steps=5, logging_steps=1000, seed=1, max_grad_norm=1.0,
        )  # fmt: skip
        trainer = Trainer(model, settings, train_dataset=Tokens(data), optimizers=(optimizer, schedule))
        trainer.train(resume_from_checkpoint=resume)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def lightning(make: Make, data: int) -> Tensor:
    """A linear model, trained by `lightning.Trainer` with clipping, accumulation and a schedule."""
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Tensor:
            (x,) = batch
            return ((self.net(x) - x.sum(1, keepdim=True)) ** 2).mean()

        def configure_optimizers(self) -> Any:
            optimizer = make(self)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}

    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(data))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=4)
    settings: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    module = Model()
    with alone():
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", devices=1, gradient_clip_val=1.0, accumulate_grad_batches=2, **settings
        )
        trainer.fit(module, loader)
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from docom.team import join

    team, found = join(os.environ), {}
    for name, train in (("transformers", hugging_face), ("lightning", lightning)):
        told = team.words(digest(train(averaged, team.rank)))
        by_itself = team.words(digest(train(adam, team.rank)))
        found[name] = {"together": told, "by itself": by_itself}
    if team.leads:
        Path(sys.argv[1]).write_text(json.dumps(found))
    team.leave()
