"""The number of this process and of all, from the environment variables of torchrun, SLURM or Open MPI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

LAUNCHERS = "torchrun, srun or mpirun"


@dataclass(frozen=True)
class Placement:
    """The place of this process among all.

    rank, world: its number and how many there are. local_rank: its number on this host.
    address, port: where the processes find each other.
    restarts: how often the launcher has restarted all of them.
    agent_store: the launcher itself keeps the store there, not the first process.
    local_world: how many there are on this host; all of them if the launcher does not say.
    launch: a name for all that the launcher starts in one call, including restarts, if the environment has one.
    """

    rank: int
    world: int
    local_rank: int
    address: str
    port: int
    restarts: int = 0
    agent_store: bool = False
    local_world: int = 0
    launch: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(
                f"process {self.rank} of {self.world}: they are numbered from 0; start it with {LAUNCHERS}"
            )
        object.__setattr__(self, "local_world", self.local_world or self.world)


def detect(environ: Mapping[str, str]) -> Placement | None:
    """The placement that a launcher describes; None without a launcher."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _torchrun(environ)
    if "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ:
        return _slurm(environ)
    if "OMPI_COMM_WORLD_RANK" in environ:
        return _open_mpi(environ)
    return None


def _torchrun(environ: Mapping[str, str]) -> Placement:
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    return Placement(
        rank,
        world,
        _number(environ, "LOCAL_RANK", rank),
        environ.get("MASTER_ADDR", "127.0.0.1"),
        _number(environ, "MASTER_PORT", 29500),
        _number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        _number(environ, "LOCAL_WORLD_SIZE", world),
    )


def _slurm(environ: Mapping[str, str]) -> Placement:
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "127.0.0.1")
    one_host = environ.get("SLURM_STEP_NUM_NODES") == "1"
    job = environ.get("SLURM_JOB_ID", "0")
    world = _number(environ, "SLURM_STEP_NUM_TASKS")
    return Placement(
        _number(environ, "SLURM_PROCID"),
        world,
        _number(environ, "SLURM_LOCALID", 0),
        environ.get("MASTER_ADDR", "127.0.0.1" if one_host else first_host(hosts)),
        _number(environ, "MASTER_PORT", _port(job + environ.get("SLURM_STEP_ID", ""))),
        _number(environ, "SLURM_RESTART_COUNT", 0),
        local_world=tasks_here(
            environ.get("SLURM_STEP_TASKS_PER_NODE", str(world)), _number(environ, "SLURM_NODEID", 0)
        ),
        launch=f"slurm {job}" if job != "0" else "",
    )


def _open_mpi(environ: Mapping[str, str]) -> Placement:
    world = _number(environ, "OMPI_COMM_WORLD_SIZE")
    here = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", world)
    if "MASTER_ADDR" not in environ and here != world:
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
        local_world=here,
    )


def first_host(hosts: str) -> str:
    """The first of SLURM's compact list of hosts.

    >>> first_host("gpu[07-09,12],cpu1")
    'gpu07'
    """
    match = re.match(r"([^,\[]+)(?:\[(\d+))?", hosts)
    if match is None:
        raise ValueError(f"cannot read SLURM's list of hosts {hosts!r}; set MASTER_ADDR to the host of rank 0")
    return match[1] + (match[2] or "")


def tasks_here(counts: str, host: int) -> int:
    """How many processes SLURM's compact list of counts gives to the host with this number.

    >>> [tasks_here("4(x2),1", host) for host in range(3)]
    [4, 4, 1]
    """
    expanded: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE reads {counts!r}; expected counts such as '4(x2),1'")
        expanded += [int(match[1])] * int(match[2] or 1)
    return expanded[min(host, len(expanded) - 1)]


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
