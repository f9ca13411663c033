"""Every method here as a ``torch.optim.Optimizer``, for your own model and training loop.

>>> import torch, docom
>>> model, x, y = torch.nn.Linear(3, 1), torch.ones(4, 3), torch.zeros(4, 1)
>>> opt = Decentralized(model.parameters(), docom.DoCoM(lr=0.1, beta=0.1), topology="ring", compressor="topk:0.5")
>>> def closure():
...     opt.zero_grad()
...     loss = torch.nn.functional.mse_loss(model(x), y)
...     loss.backward()
...     return loss
>>> first = opt.step(closure)
>>> bool(opt.step(closure) < first)
True

Under ``torchrun`` every process is one agent; under plain ``python`` there is one. With ``inner=torch.optim.AdamW(...)`` and
``every=30`` the agents take thirty of its steps between messages. Inside a trainer of another library see `alone`.
"""

from __future__ import annotations

from docom.optim.alone import alone
from docom.optim.decentralized import Decentralized

__all__ = ["Decentralized", "alone"]
