"""The team: the processes of one program, from the view of one of them.

Runs and optimizers use the same: `join` reads the variables of torchrun, SLURM or MPI (or takes a group of processes that the
program has made) and returns a `Team`. It has one identity of the run, which every frame carries; one comparison of the settings
that must be equal in all processes; one board to which a process that fails writes the reason. A program in a single process
is a team of one.

This package does not know what a team computes: see `docom.distribute` for runs and `docom.optim` for training loops.
"""

from __future__ import annotations

from docom.team.launchers import Placement, detect
from docom.team.processes import Processes
from docom.team.rendezvous import OpenRendezvous
from docom.team.start import BACKENDS, join
from docom.team.talk import Talk
from docom.team.team import Team

__all__ = ["BACKENDS", "OpenRendezvous", "Placement", "Processes", "Talk", "Team", "detect", "join"]
