"""A small character-level transformer; every agent reads a different module of Python's own library.

python examples/transformer.py                        one agent
torchrun --nproc-per-node 4 examples/transformer.py   four, on a ring; also with srun -n 4 python, mpirun -n 4 python
"""

import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import docom
from docom.team import detect

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
placed = detect(os.environ)  # what torchrun, srun or mpirun says; None where nothing of the kind has started this
agent, gpu = (0, 0) if placed is None else (placed.rank, placed.local_rank % max(1, torch.cuda.device_count()))
device = torch.device("cuda", gpu) if torch.cuda.is_available() else torch.device("cpu")
sources = [Path(os.__file__).with_name(f"{name}.py").read_bytes() for name in ("argparse", "inspect", "random", "ast")]
texts = [torch.tensor(list(source), device=device) % 128 for source in sources]
WIDTH, LENGTH = 64, 64

torch.manual_seed(agent)
layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
model = nn.ModuleList([nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH), layers]).to(device)
mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=device)


def bits_a_character(text, size):  # noqa: D103
    batch = torch.stack([text[i : i + LENGTH + 1] for i in torch.randint(len(text) - LENGTH, (size,))])
    characters, places, layers = model
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        hidden = layers(characters(batch[:, :-1]) + places.weight, mask=mask, is_causal=True)
        scores = hidden @ characters.weight.T / WIDTH**0.5  # shared weights
        return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten()) / 0.6931


# All agents start from agent 0's model. One gradient per step, so no closure.
method = docom.MoTEF(lr=2.0, gamma="auto", beta=0.1)
opt = docom.optim.Decentralized(model.parameters(), method, compressor="topk:0.05,scope=tensor,whole=256")
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
for step in range(steps):
    opt.zero_grad()
    loss = bits_a_character(texts[agent % 4], 16)
    loss.backward()
    opt.step()
    scheduler.step()
    if agent == 0 and step % 20 == 0:
        print(f"step {step:3d}  bits per character of agent 0 {loss.item():.3f}", flush=True)

opt.consensus_()  # every agent must call it
model.eval()
found = [round(bits_a_character(text, 64).item(), 3) for text in texts]
print(f"agent {agent}: the average model needs {found} bits per character of each text\n{opt.stats}")
