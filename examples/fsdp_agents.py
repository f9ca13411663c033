"""Agents of several processes each: FSDP2 or DDP inside an agent, compressed messages between agents.

torchrun --nproc-per-node 4 examples/fsdp_agents.py               two agents of two ranks, FSDP2
torchrun --nproc-per-node 4 examples/fsdp_agents.py --inside ddp  the same with DDP
torchrun --nproc-per-node 4 examples/fsdp_agents.py --ranks 1     four agents of one rank
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import docom

WIDTH, LENGTH, EVERY = 64, 64, 10
TEXTS = ("argparse", "inspect", "random", "ast")  # modules of Python's own library; an agent reads one of them


class Transformer(nn.Module):
    """A small character-level transformer whose embedding is its last layer too."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The loss, in bits per character."""
        places = self.places(torch.arange(LENGTH, device=batch.device))
        hidden = self.layers(self.characters(batch[:, :-1]) + places, mask=self.mask, is_causal=True)
        scores = hidden @ self.characters.weight.T / WIDTH**0.5
        return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten()) / 0.6931


def text_of(agent: int, device: torch.device) -> torch.Tensor:
    """An agent's own data."""
    return torch.tensor(list(Path(os.__file__).with_name(f"{TEXTS[agent % 4]}.py").read_bytes()), device=device) % 128


def batch_of(text: torch.Tensor, size: int) -> torch.Tensor:
    """Random pieces of a text."""
    return torch.stack([text[i : i + LENGTH + 1] for i in torch.randint(len(text) - LENGTH, (size,))])


def divided(model: nn.Module, mesh: object, inside: str) -> nn.Module:
    """The model over the ranks of an agent, as a user would do it without docom."""
    if inside == "ddp":
        return nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group())
    for layer in model.layers.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh, reshard_after_forward=True)


def main() -> None:  # noqa: D103
    given = argparse.ArgumentParser()
    given.add_argument("--steps", type=int, default=200)
    given.add_argument("--ranks", type=int, default=2, help="processes of an agent")
    given.add_argument("--inside", choices=("fsdp", "ddp"), default="fsdp")
    given.add_argument("--save", help="write the state to this folder at the end")
    given.add_argument("--resume", help="continue from such a folder, with the same or another number of ranks")
    given = given.parse_args()

    kind = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device("cpu")
    world = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(kind, (world // given.ranks, given.ranks), mesh_dim_names=("agents", "ranks"))

    torch.manual_seed(0)
    model = divided(Transformer().to(device), mesh["ranks"], given.inside)
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3)
    opt = docom.optim.Decentralized(
        model.parameters(),
        docom.ChocoSGD(lr=1.0, gamma="auto"),
        compressor="topk:0.05",
        mesh=mesh,
        inner=inner,
        every=EVERY,
    )
    if given.resume:
        opt.load(given.resume)
    torch.manual_seed(dist.get_rank())  # each rank draws batches of its own, from the text of its agent
    text = text_of(opt.agent, device)
    for step in range(given.steps):
        opt.zero_grad()
        loss = model(batch_of(text, 16))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step:3d}  bits per character of agent 0 {loss.item():.3f}", flush=True)

    if given.save:
        opt.save(given.save)
    opt.consensus_()  # every process must call it
    model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        found = [round(model(batch_of(text_of(agent, device), 64)).item(), 3) for agent in range(4)]
    if dist.get_rank() == 0:
        print(
            f"{opt.agents} agents of {opt.ranks} rank(s): the average model needs {found} bits per character of each text"
        )
        print(opt.stats)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
