"""The options that say what happens to a run's messages, links and agents: the same for run, compare and tune."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

Conditions = dict[str, Any] | None

# Name -> what its help says. The names are those of `docom.Conditions`; "none" takes one away that a file has.
OPTIONS = {
    "loss": "Probability that a message to a neighbour is lost: 0.1; none for none.",
    "acknowledgements": "Probability that an acknowledgement is lost; if left out, that of a message.",
    "delay": "Messages arrive up to so many rounds late.",
    "outages": "Probability that a link is down in a round, in both directions.",
    "repair": "What both ends of a link keep, so that losses do no harm: resend or edges.",
    "clip": "Bound what a neighbour can do in a round: second or median.",
    "bad": "Agents that send garbage: 9=noise:450,4=nan.",
    "churn": "Agents that leave, crash and join: leave@100:3,join@300:3, or every=100 for random changes.",
    "clock": "How long things take: step=0.2,latency=50ms,up=10mbit,down=10mbit,slow=3:10; none for none.",
}
PANEL = "What happens to messages, links and agents"


def with_conditions(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it gets those that were used as ``conditions``, a mapping, or None."""
    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option(f"--{name}", help=text, rich_help_panel=PANEL)],
        )
        for name, text in OPTIONS.items()
    ]
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name != "conditions"
    ]

    @wraps(command)
    def extended(**given: Any) -> None:
        from docom.config import parse_yaml

        texts = {name: given.pop(name) for name in OPTIONS}
        found = {name: parse_yaml(text) for name, text in texts.items() if text is not None}
        command(**given, conditions=found or None)

    del extended.__wrapped__  # typer would read that signature
    extended.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    extended.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    return extended
