"""From a launcher's environment to a team."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from docom.distribute.board import Board
from docom.distribute.environment import LAUNCHERS, Placement, detect
from docom.distribute.processes import Processes
from docom.distribute.team import Team
from docom.transports import TorchPost

BACKENDS = ("gloo", "nccl", "mpi")
# Gloo's own timeout closes healthy links too, so it must never come first.
NEVER = timedelta(days=365)


def join(
    environ: Mapping[str, str], backend: str | None = None, peer_timeout: float = 300.0, device: str = "cpu"
) -> Team:
    """The team that this process belongs to: of one where no launcher has started it.

    Args:
        environ: the environment variables.
        backend: "gloo", "nccl" or "mpi"; by default gloo on CPUs and NCCL on GPUs.
        peer_timeout: seconds another process may stay silent.
        device: where the run computes.
    """
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"--backend is one of {', '.join(BACKENDS)}, got {backend!r}")
    if not peer_timeout > 0:
        raise ValueError(f"--peer-timeout is a number of seconds > 0, got {peer_timeout}")
    if backend == "mpi":
        return _mpi(peer_timeout)
    placement = detect(environ)
    if placement is None:
        if backend is not None:
            raise ValueError(f"--backend {backend} is for several processes; start them with {LAUNCHERS}")
        return Team()
    return _torch(placement, backend or ("nccl" if device.startswith("cuda") else "gloo"), peer_timeout, device)


def _torch(placement: Placement, backend: str, peer_timeout: float, device: str) -> Team:
    keeps_store = placement.rank == 0 and not placement.agent_store
    met = dist.TCPStore(  # type: ignore[attr-defined]
        placement.address, placement.port, placement.world, keeps_store, timedelta(seconds=peer_timeout)
    )
    store = dist.PrefixStore(f"docom/{placement.restarts}", met)  # type: ignore[attr-defined]
    where = torch.device("cpu")
    if backend == "nccl":
        if placement.local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"NCCL wants a GPU for every process, and this is process {placement.local_rank + 1} on a host with "
                f"{torch.cuda.device_count()}; start fewer, or share GPUs with --backend gloo"
            )
        where = torch.device("cuda", placement.local_rank)
        torch.cuda.set_device(where)
    dist.init_process_group(backend, store=store, rank=placement.rank, world_size=placement.world, timeout=NEVER)
    board = Board(store, placement.rank)
    return Processes(TorchPost(peer_timeout, where), board, backend, placement.local_rank, placement.restarts)


def _mpi(peer_timeout: float) -> Team:
    from docom.transports.mpi import MpiPost

    post = MpiPost(peer_timeout)
    return Processes(post, None, "mpi", post.local_rank)
