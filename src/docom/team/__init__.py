"""The team: the processes of one program, as one of them sees them.

Runs and optimizers have the same: `join` reads what torchrun, SLURM or MPI say (or takes a group of processes that the program
has made) and gives a `Team`. It has one identity of the run, which every frame carries; one agreement upon the settings that
all must have alike; one board on which a process that fails says why. A program in a single process is a team of one.

What a team computes is not known here: see `docom.distribute` for runs and `docom.optim` for training loops.
"""

from __future__ import annotations

from docom.team.launchers import Placement, detect
from docom.team.meeting import OpenMeeting
from docom.team.processes import Processes
from docom.team.start import BACKENDS, join
from docom.team.talk import Talk
from docom.team.team import Team

__all__ = ["BACKENDS", "OpenMeeting", "Placement", "Processes", "Talk", "Team", "detect", "join"]
