"""Makes a team from a launcher's environment, or from a group of processes that the program has made."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from docom.names import nearest
from docom.team.control import StoreControl
from docom.team.launchers import LAUNCHERS, Placement, detect
from docom.team.processes import Processes
from docom.team.rendezvous import open_store
from docom.team.store import Store
from docom.team.team import Team
from docom.transports import TorchPost

BACKENDS = ("gloo", "nccl", "mpi")
# Gloo's own timeout also closes working connections, so it must never expire first.
NEVER = timedelta(days=365)


def join(
    environ: Mapping[str, str],
    backend: str | None = None,
    peer_timeout: float = 300.0,
    device: str | torch.device = "cpu",
    group: Any = None,
) -> Team:
    """The team of this process: a team of one if no launcher has started it.

    Args:
        environ: the environment variables.
        backend: "gloo", "nccl" or "mpi"; by default NCCL where every process of a host has a GPU to itself and computes
            there, else gloo.
        peer_timeout: the longest time, in seconds, to wait for another process.
        device: where this process computes.
        group: the processes, where the program has made a group of them: a ``ProcessGroup``, or a ``DeviceMesh`` of one
            dimension. By default those of the default group if the program has made one, else those that the launcher has
            started. Only a group made here is closed here.
    """
    if backend is not None and backend not in BACKENDS:
        raise nearest("backend", backend, BACKENDS)
    if not peer_timeout > 0:
        raise ValueError(f"--peer-timeout is a number of seconds > 0, got {peer_timeout}")
    if backend == "mpi":
        if group is not None:
            raise ValueError("--backend mpi has all processes of MPI.COMM_WORLD; leave group out")
        return _by_mpi(peer_timeout)
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    if group is not None:
        return _of_group(_as_group(group), backend, peer_timeout, torch.device(device))
    placement = detect(environ)
    if placement is None:
        if backend is not None:
            raise ValueError(f"--backend {backend} is for several processes; start them with {LAUNCHERS}")
        return Team()
    return _of_launcher(placement, backend, peer_timeout, torch.device(device))


def _of_launcher(placement: Placement, backend: str | None, peer_timeout: float, device: torch.device) -> Team:
    gpus = torch.cuda.device_count()
    backend = backend or ("nccl" if device.type == "cuda" and placement.local_world <= gpus else "gloo")
    where = torch.device("cpu")
    if backend == "nccl":
        if placement.local_rank >= gpus:
            raise ValueError(
                f"NCCL needs a GPU for every process, and this is process {placement.local_rank + 1} on a host with "
                f"{gpus}; start fewer, or share GPUs with --backend gloo"
            )
        where = device if device.index is not None else torch.device("cuda", placement.local_rank)
        torch.cuda.set_device(where)
    store = open_store(placement, peer_timeout)
    _agree_on(backend, store, placement.rank)
    dist.init_process_group(backend, store=store, rank=placement.rank, world_size=placement.world, timeout=NEVER)
    post = TorchPost(dist.group.WORLD, peer_timeout, where, closes=True)
    atexit.register(post.close)
    return Processes(
        post,
        StoreControl(store, post),
        store,
        backend,
        placement.local_rank,
        placement.restarts,
        _launch(store, placement),
    )


def _launch(store: Any, placement: Placement) -> str:
    """The name of this call of the launcher; its store stays over restarts and keeps the first name that process 0 writes."""
    if placement.rank != 0 or not placement.agent_store:
        return placement.launch
    return str(store.underlying_store.compare_set("docom/launch", "", os.urandom(16).hex()).decode())


def _agree_on(backend: str, store: Store, rank: int) -> None:
    """Raise if processes chose different backends, because of their hosts or flags: they would wait for each other forever."""
    if rank == 0:
        store.set("backend", backend)
    first = store.get("backend").decode()
    if first != backend:
        raise ValueError(
            f"process 0 uses {first}, process {rank} uses {backend}; give all of them the same --backend (gloo serves "
            "GPUs too, and several processes on one)"
        )


def _of_group(group: Any, backend: str | None, peer_timeout: float, device: torch.device) -> Team:
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("this process is not in the group; only the processes of a group can be its agents")
    used = str(dist.get_backend(group))
    if backend is not None and backend != used:
        raise ValueError(f"the group uses {used}, not {backend}; leave the backend out")
    post, store = TorchPost(group, peer_timeout, device), group.get_group_store()
    return Processes(post, StoreControl(store, post), store, used, rank)


def _as_group(given: Any) -> Any:
    """The group given as a group or as a mesh."""
    if isinstance(given, dist.ProcessGroup):
        return given
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(given, DeviceMesh):
        raise TypeError(f"group is a torch.distributed.ProcessGroup or a DeviceMesh of one dimension, got {given!r}")
    if given.ndim != 1:
        names = ", ".join(map(repr, given.mesh_dim_names or ()))
        raise ValueError(
            f"a mesh of {given.ndim} dimensions is not one group of agents; pass one of its dimensions, as in mesh['agents']"
            + (f" (it has {names})" if names else "")
            + "; where each agent is several processes, an optimizer takes mesh="
        )
    return given.get_group()


def _by_mpi(peer_timeout: float) -> Team:
    from docom.team.mpi_control import MpiControl
    from docom.transports.mpi import MpiPost

    post = MpiPost(peer_timeout)
    return Processes(post, MpiControl(post), None, "mpi", post.local_rank)
