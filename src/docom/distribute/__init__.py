"""Real agents: the same run spread over processes, started by torchrun, srun or mpirun.

`join` says which team this process belongs to; the runner asks the team for its transport, for measures, and for what all
processes must agree upon. No update rule is known here.
"""

from __future__ import annotations

from docom.distribute.environment import Placement, detect
from docom.distribute.facts import facts
from docom.distribute.processes import Processes
from docom.distribute.start import BACKENDS, join
from docom.distribute.talk import Talk
from docom.distribute.team import Team

__all__ = ["BACKENDS", "Placement", "Processes", "Talk", "Team", "detect", "facts", "join"]
