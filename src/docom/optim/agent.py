"""One agent of a method, with gradients that come from outside.

The simulator runs ``advance``, gradients, ``absorb``. A training loop brings the gradients first, so here a step is
``absorb``, which ends step t - 1 of the method, and ``advance``, which begins step t: the same sequence, divided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from docom.algorithms import Algorithm, Hyper
from docom.channels import Channels, NonFiniteVariable
from docom.numerics import combine
from docom.team import Team
from docom.transports import ExchangeError

Rate = float | Tensor
CHECKED_EVERY = 50  # steps between checks of what a GPU has noted


class Agent:
    """The rows of one agent, its channels, and how many steps it has taken.

    rate: the step size of the last step: a number, or one per coordinate ``[1, d]``.
    """

    def __init__(
        self, algorithm: Algorithm, channels: Channels, team: Team, x0: Tensor, grad0: Tensor, rate: Rate
    ) -> None:
        self.algorithm, self.channels, self.team = algorithm, channels, team
        self.step, self.rate = 0, rate
        self._rate_name = algorithm.learning_rate_name() or "lr"
        self.state = algorithm.init(x0, grad0, channels, self._hyper(0))
        self.state.points = (self.state.x,)

    @property
    def points(self) -> tuple[Tensor, ...]:
        """Where gradients are needed: at the model, and for some methods also at the previous one."""
        return self.state.points

    def absorb(self, gradients: Sequence[Tensor]) -> None:
        """Take the gradients at `points`, all on one batch."""
        self._run(lambda: self.algorithm.absorb(self.state, gradients, self.channels, self._hyper(self.step - 1)))

    def advance(self, rate: Rate, shrink: Rate = 1.0) -> None:
        """Move the model and exchange messages with the neighbours.

        shrink: what the model is multiplied with before it moves: 1 - lr * weight_decay.
        """
        self.rate = rate
        before = None
        if isinstance(shrink, Tensor) or shrink != 1:
            before = self.state.x.clone() if self.algorithm.points_per_step > 1 else None
            combine(self.state.x, (shrink, self.state.x))
        self._run(self._advance)
        if before is not None:  # the second gradient is that of the model as it was when its first one was taken
            self.points[1].copy_(before)
        self.step += 1
        if self.step % CHECKED_EVERY == 0:
            self.check()

    def _advance(self) -> None:
        arriving = self.algorithm.advance(self.state, self.channels, self._hyper(self.step))
        if arriving is not None:  # the user's next forward pass is at the model that the message makes
            arriving.wait()

    def check(self) -> None:
        """Raise the error for numbers that are not finite on a GPU, which notes them and is read only now."""
        self._run(self.channels.check)

    def _hyper(self, t: int) -> Hyper:
        return self.algorithm.hyper(t, **{self._rate_name: self.rate})

    def _run(self, half_step: Any) -> None:
        try:
            half_step()
        except NonFiniteVariable as error:
            diverged = FloatingPointError(
                f"agent {self.team.rank}, step {self.step}: NaN or infinity in the {error.variable}; "
                f"{self.algorithm.name} has diverged, lower {self.algorithm.to_lower}, or clip gradients"
            )
            raise self.team.told(diverged) from None
        except ExchangeError as error:
            error.step = self.step
            raise self.team.told(error) from None

    def saved(self) -> dict[str, Any]:
        """All that must be saved, as plain containers of tensors and numbers."""
        self.check()
        rows = self.state.rows()
        names = [next((name for name, row in rows.items() if row is point), None) for point in self.points]
        if None in names:
            raise TypeError(
                f"{self.algorithm.name} needs gradients at rows that are not in its state, so it cannot be saved"
            )
        return {
            "step": self.step,
            "rate": self.rate,
            "points": names,
            "state": rows,
            "links": self.channels.rows(),
            "rounds": self.channels.rounds(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Restore what `saved` returned."""
        for name, row in self.state.rows().items():
            row.copy_(saved["state"][name])
        self.channels.load(saved["links"], saved["rounds"])
        self.state.points = tuple(getattr(self.state, name) for name in saved["points"])
        rate = saved["rate"]
        self.step, self.rate = int(saved["step"]), rate.to(self.state.x.device) if isinstance(rate, Tensor) else rate
