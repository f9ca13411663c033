"""A small convolutional network, trained by agents that see different classes and send 5% of the numbers.

python examples/convnet.py                            one agent
torchrun --nproc-per-node 4 examples/convnet.py       four, on a ring; also with srun -n 4 python, mpirun -n 4 python
"""

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

import docom
from docom.team import detect

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
placed = detect(os.environ)  # what torchrun, srun or mpirun says; None where nothing of the kind has started this
gpu = 0 if placed is None else placed.local_rank % max(1, torch.cuda.device_count())
device = torch.device("cuda", gpu) if torch.cuda.is_available() else torch.device("cpu")
looks = F.avg_pool2d(torch.randn(10, 1, 18, 18, generator=torch.Generator().manual_seed(0)), 3, 1)  # of ten classes


def batch(classes: range, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images of some classes."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.tensor(classes)[torch.randint(len(classes), (size,), generator=draw)]
    return (looks[y] + torch.randn(size, 1, 16, 16, generator=draw)).to(device), y.to(device)


model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Flatten(), nn.Linear(400, 10),
).to(device)  # fmt: skip
opt = docom.optim.Decentralized(
    model.parameters(), docom.DoCoM(lr=0.05, gamma="auto", beta=0.1), topology="ring", compressor="topk:0.05",
    model=model, buffers="average",
)  # fmt: skip
agent, agents = opt.agent, opt.agents
for step in range(steps):
    own = range(agent, 10, agents)  # classes that no other agent has
    x, y = batch(own, 256 if step == 0 else 32, seed=1 + step * agents + agent)

    def closure(x=x, y=y):  # noqa: D103
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    loss = opt.step(closure)
    if agent == 0 and step % 20 == 0:
        print(f"step {step:3d}  agent 0's loss on its own classes {loss.item():.4f}", flush=True)

opt.consensus_()  # every agent must call it
x, y = batch(range(10), 2000, seed=0)
accuracy = (model.eval()(x).argmax(1) == y).float().mean().item()
if agent == 0:
    print(f"{agents} agent(s): the average model gets {accuracy:.1%} of all classes; {opt.stats['bytes']:,} bytes sent")
