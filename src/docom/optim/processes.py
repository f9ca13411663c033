"""The processes of one program, one agent each, for all that is not gossip: agreeing, starting, averaging."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor


class Processes:
    """Collectives over the default process group; a single process is a group of its own.

    agent: of this process. count: of all of them. device: where tensors must be to travel.
    """

    def __init__(self, agent: int = 0, count: int = 1, device: torch.device | None = None) -> None:
        self.agent, self.count = agent, count
        self.device = device or torch.device("cpu")

    @staticmethod
    def join(device: torch.device) -> Processes:
        """The process group as it is, or as torchrun's environment describes it, or this process alone."""
        if not dist.is_available() or not (dist.is_initialized() or {"RANK", "WORLD_SIZE"} <= os.environ.keys()):
            return Processes()
        if not dist.is_initialized():
            dist.init_process_group(_backend(device))
            atexit.register(_leave)
        travels_on = device if dist.get_backend() == "nccl" else torch.device("cpu")
        return Processes(dist.get_rank(), dist.get_world_size(), travels_on)

    def start_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite every tensor with that of agent 0, bit for bit."""
        if self.count == 1:
            return
        for tensor in tensors:
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).to(self.device, copy=True)
            if data.numel():
                dist.broadcast(data, src=0)
                tensor.detach().copy_(data.to(tensor.device).view(tensor.dtype).reshape(tensor.shape))

    def mean(self, tensor: Tensor) -> Tensor:
        """The average over all agents, as a new tensor with the same bits everywhere."""
        total = tensor.detach().to(self.device, copy=True)
        if self.count > 1:
            dist.all_reduce(total)
            total /= self.count
        return total.to(tensor.device)

    def any(self, flag: bool) -> bool:
        """Whether it is true of any agent."""
        return bool(self.mean(torch.tensor([float(flag)])).item() > 0)

    def agree(self, settings: Mapping[str, str]) -> None:
        """Raise an error, in every process, that names the settings in which agents differ."""
        for agent, other in enumerate(self._everybodys(json.dumps(dict(settings)))):
            theirs = json.loads(other)
            different = [name for name in settings if theirs.get(name) != settings[name]]
            if different:
                details = "; ".join(
                    f"{name}: {settings[name]} at agent {self.agent}, {theirs.get(name)} at agent {agent}"
                    for name in different
                )
                raise ValueError(
                    f"agent {self.agent}, step 0: agents {self.agent} and {agent} differ in {details}; "
                    "run the same program with the same settings in every process"
                )

    def _everybodys(self, text: str) -> list[str]:
        if self.count == 1:
            return [text]
        data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        lengths = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.count)]
        dist.all_gather(lengths, torch.tensor([len(data)], device=self.device))
        longest = max(int(length) for length in lengths)
        texts = [torch.zeros(longest, dtype=torch.uint8, device=self.device) for _ in range(self.count)]
        dist.all_gather(texts, torch.nn.functional.pad(data, (0, longest - len(data))))
        return [bytes(t[: int(n)].tolist()).decode() for t, n in zip(texts, lengths, strict=True)]


def _backend(device: torch.device) -> str:
    """NCCL where every process of this machine has a GPU to itself, else gloo, which also serves shared GPUs."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    return "nccl" if device.type == "cuda" and here <= torch.cuda.device_count() else "gloo"


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
