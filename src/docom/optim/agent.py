"""One agent of a method, with gradients that come from outside.

The simulator runs ``advance``, gradients, ``absorb``. A training loop brings the gradients first, so here a step is
``absorb``, which ends step t - 1 of the method, and ``advance``, which begins step t: the same sequence, divided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from docom.algorithms import Algorithm, Hyper
from docom.channels import Channels, NonFiniteVariable, Resting
from docom.numerics import combine
from docom.team import Team
from docom.transports import ExchangeError, Pending

Rate = float | Tensor
Result = TypeVar("Result")
CHECKED_EVERY = 50  # steps between checks of what a GPU has noted


class Agent:
    """The rows of one agent, its channels, and how many steps it has taken.

    rate: the step size of the last step: a number, or one per coordinate ``[1, d]``.
    path: the sum of the inner step sizes behind the pseudo-gradient; 1 for gradients.
    walks: whether it is given pseudo-gradients, in which the method's correction is contained.
    rows: what its rows are between two steps; see `docom.channels.resting`.
    """

    def __init__(
        self, algorithm: Algorithm, channels: Channels, team: Team, x0: Tensor, first: Sequence[Tensor], rate: Rate,
        path: Rate = 1.0, walks: bool = False, rows: str = "full",
    ) -> None:  # fmt: skip
        self.algorithm, self.channels, self.team = algorithm, channels, team
        self.step, self.rate = 0, rate
        self.path: Rate = path
        self._rate_name = algorithm.learning_rate_name() or "lr"
        self.walks = walks
        self.state = algorithm.init(x0, first[0], channels, self._hyper(0))
        self.state.points = (self.state.x,)
        if len(first) > 1:  # a method that corrects local steps keeps both rows
            algorithm.absorb(self.state, first, channels, self._hyper(0))
        self.resting = None if rows == "full" else Resting(rows, channels)

    def rest(self) -> None:
        """Put the rows to rest that are not needed until the next step: of a walk all but what corrects it."""
        if self.resting is not None:
            points = () if self.walks else self.points
            needed = [row for row in (*points, self.state.correction) if row is not None]
            self.resting.rest(self.state.rows(), needed)

    def wake(self) -> None:
        """The rows are as a step, and anybody else, expects them."""
        if self.resting is not None:
            self.resting.wake()

    @property
    def points(self) -> tuple[Tensor, ...]:
        """Where gradients are needed: at the model, and for some methods also at the previous one."""
        return self.state.points

    @property
    def free_row(self) -> Tensor | None:
        """A row in which the walk may add up gradients while no message is under way, for methods that want their mean.

        None where rows are put to rest.
        """
        name = self.algorithm.inner_mean
        return None if name is None or self.resting is not None else getattr(self.state, name)

    def absorb(self, gradients: Sequence[Tensor]) -> None:
        """Take the gradients at `points`, all on one batch; or the pseudo-gradient, and what belongs to it."""
        self.wake()
        correction = self.state.correction
        if correction is not None and not self.walks:
            combine(gradients[0], (1, gradients[0]), (1, correction))
        self._run(lambda: self.algorithm.absorb(self.state, gradients, self.channels, self._hyper(self.step - 1)))

    def advance(self, rate: Rate, shrink: Rate = 1.0) -> None:
        """Move the model and exchange messages with the neighbours.

        shrink: what the model is multiplied with before it moves: 1 - lr * weight_decay.
        """
        self.wake()
        self.rate = rate
        before = None
        if isinstance(shrink, Tensor) or shrink != 1:
            before = self.state.x.clone() if self.algorithm.points_per_step > 1 else None
            for name in self.algorithm.models:
                row = getattr(self.state, name)
                combine(row, (shrink, row))
        self._run(self._advance)
        if before is not None:  # the second gradient is that of the model as it was when its first one was taken
            self.points[1].copy_(before)
        self.step += 1
        if self.step % CHECKED_EVERY == 0:
            self.check()

    def begin_advance(self, rate: Rate) -> Pending[Any] | None:
        """Like `advance`, but returns before the messages of methods that can leave them under way have arrived."""
        self.wake()
        self.rate = rate
        arriving: list[Pending[Any] | None] = []
        self._run(lambda: arriving.append(self.algorithm.advance(self.state, self.channels, self._hyper(self.step))))
        self.step += 1
        pending = arriving[0]
        if pending is None:
            return None
        return Pending(lambda: self._run(pending.wait), pending.under_way, lambda: self._run(pending.ready))

    def _advance(self) -> None:
        arriving = self.algorithm.advance(self.state, self.channels, self._hyper(self.step))
        if arriving is not None:  # the user's next forward pass is at the model that the message makes
            arriving.wait()

    def jump(self, step: int) -> None:
        """Go on from a step that another agent has reached."""
        self.step = step
        for channel in self.channels.values():
            channel.resume(step)

    def check(self) -> None:
        """Raise the error for numbers that are not finite on a GPU, which notes them and is read only now."""
        self._run(self.channels.check)

    def _hyper(self, t: int) -> Hyper:
        hyper = self.algorithm.hyper(t, **{self._rate_name: self.rate})
        hyper.path = self.path
        return hyper

    def _run(self, half_step: Callable[[], Result]) -> Result:
        try:
            return half_step()
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
        self.wake()
        rows = self.state.rows()
        names = [_name_of(point, rows) for point in self.points]
        if None in names:
            raise TypeError(
                f"{self.algorithm.name} needs gradients at rows that are not in its state, so it cannot be saved"
            )
        return {
            "step": self.step,
            "rate": self.rate,
            "path": self.path,
            "points": names,
            "correction": _name_of(self.state.correction, rows),
            "state": rows,
            "links": self.channels.rows(),
            "rounds": self.channels.rounds(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Restore what `saved` returned."""
        self.wake()
        for name, row in self.state.rows().items():
            row.copy_(saved["state"][name])
        self.channels.load(saved["links"], saved["rounds"])
        self.state.points = tuple(getattr(self.state, name) for name in saved["points"])
        named = saved.get("correction")
        self.state.correction = None if named is None else getattr(self.state, named)
        device = self.state.x.device
        rate, path = (x.to(device) if isinstance(x, Tensor) else x for x in (saved["rate"], saved.get("path", 1.0)))
        self.step, self.rate, self.path = int(saved["step"]), rate, path


def _name_of(wanted: Tensor | None, rows: dict[str, Tensor]) -> str | None:
    """Which of the rows this is."""
    return next((name for name, row in rows.items() if row is wanted), None)
