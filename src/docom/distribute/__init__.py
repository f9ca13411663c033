"""Real agents: the same run spread over the processes of a team, started by torchrun, srun or mpirun.

`docom.team.join` returns the team of this process; `all_agents` measures over all agents of the run, of which each process of the
team holds some; `facts` are the settings that must be equal in all processes. No update rule is known here.
"""

from __future__ import annotations

from docom.distribute.everyone import AllAgents, all_agents
from docom.distribute.facts import facts

__all__ = ["AllAgents", "all_agents", "facts"]
