"""Which process of how many this is, as torchrun, SLURM or Open MPI say in the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

LAUNCHERS = "torchrun, srun or mpirun"


@dataclass(frozen=True)
class Placement:
    """This process among its fellows.

    rank, world: its number and how many there are. local_rank: its number on this host.
    address, port: where the processes find each other.
    restarts: how often the launcher has started them all again.
    agent_store: the launcher itself keeps the meeting point there, and not the first process.
    """

    rank: int
    world: int
    local_rank: int
    address: str
    port: int
    restarts: int = 0
    agent_store: bool = False


def detect(environ: Mapping[str, str]) -> Placement | None:
    """The placement that a launcher describes; None where there is no launcher."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _torchrun(environ)
    if "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ:
        return _slurm(environ)
    if "OMPI_COMM_WORLD_RANK" in environ:
        return _open_mpi(environ)
    return None


def _torchrun(environ: Mapping[str, str]) -> Placement:
    rank = _number(environ, "RANK")
    return Placement(
        rank,
        _number(environ, "WORLD_SIZE"),
        _number(environ, "LOCAL_RANK", rank),
        environ.get("MASTER_ADDR", "127.0.0.1"),
        _number(environ, "MASTER_PORT", 29500),
        _number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _slurm(environ: Mapping[str, str]) -> Placement:
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "127.0.0.1")
    job = environ.get("SLURM_JOB_ID", "0")
    return Placement(
        _number(environ, "SLURM_PROCID"),
        _number(environ, "SLURM_STEP_NUM_TASKS"),
        _number(environ, "SLURM_LOCALID", 0),
        environ.get("MASTER_ADDR", first_host(hosts)),
        _number(environ, "MASTER_PORT", _port(job + environ.get("SLURM_STEP_ID", ""))),
        _number(environ, "SLURM_RESTART_COUNT", 0),
    )


def _open_mpi(environ: Mapping[str, str]) -> Placement:
    world = _number(environ, "OMPI_COMM_WORLD_SIZE")
    if "MASTER_ADDR" not in environ and _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", world) != world:
        raise ValueError(
            "several hosts under mpirun need MASTER_ADDR, the host of rank 0: pass it with mpirun -x MASTER_ADDR=..., "
            "or use --backend mpi"
        )
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", "0")
    return Placement(
        _number(environ, "OMPI_COMM_WORLD_RANK"),
        world,
        _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        environ.get("MASTER_ADDR", "127.0.0.1"),
        _number(environ, "MASTER_PORT", _port(job)),
    )


def first_host(hosts: str) -> str:
    """The first of SLURM's compact list of hosts.

    >>> first_host("gpu[07-09,12],cpu1")
    'gpu07'
    """
    match = re.match(r"([^,\[]+)(?:\[(\d+))?", hosts)
    if match is None:
        raise ValueError(f"SLURM's list of hosts reads {hosts!r}; set MASTER_ADDR to the host of rank 0")
    return match[1] + (match[2] or "")


def _port(job: str) -> int:
    """A port of its own for every job, the same in all of its processes."""
    return 20000 + int.from_bytes(sha256(job.encode()).digest()[:4], "big") % 20000


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        raise ValueError(f"the environment variable {name} must be a number, got {text!r}; start it with {LAUNCHERS}")
    return int(text)
