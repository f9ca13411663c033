"""Hiding a launcher from other libraries, so that they train this agent's model by itself.

Trainers such as Hugging Face's or Lightning's look for a launcher's variables, and where they find them they average all
processes' gradients in every step: all agents would train one common model, which is what decentralised training replaces.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PREFIXES = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "GROUP_", "ROLE_")
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def alone() -> Iterator[None]:
    """A context without the variables of torchrun, srun and mpirun.

    Make `Decentralized` before it, and the trainer with its arguments inside.

    >>> import os
    >>> os.environ["WORLD_SIZE"] = "8"
    >>> with alone():
    ...     "WORLD_SIZE" in os.environ
    False
    >>> os.environ.pop("WORLD_SIZE")
    '8'
    """
    hidden = {name: value for name, value in os.environ.items() if name in NAMES or name.startswith(PREFIXES)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
