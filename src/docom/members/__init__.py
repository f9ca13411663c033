"""Runs in which agents leave and join: the rows of a run are those of the agents that take part.

A change of members begins a new epoch: the network of those who take part, channels over it that take over what the members
know, and a state that is repaired so that what a method conserves stays conserved. Between changes a run of m members is a run
with m agents.
"""

from docom.members.moments import moments
from docom.members.training import MembersTraining, Parts

__all__ = ["MembersTraining", "Parts", "moments"]
