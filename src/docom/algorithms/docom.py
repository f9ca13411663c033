"""DoCoM: doubly compressed momentum-assisted stochastic gradient tracking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from docom import schedules
from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import WEIGHTS, compressor_of, consensus_step, learning_rate, step_size
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine, combine_in_turn
from docom.transports import Pending


@register
@dataclass(frozen=True)
class DoCoM(Algorithm):
    """Gradient tracking with two compressed messages per step and variance-reduced gradients.

    Yau and Wai, "DoCoM: Compressed Decentralized Optimization with Near-Optimal Sample Complexity", TMLR 2023,
    Algorithm 1::

        theta  <- theta - eta g + gamma (W - I) theta_hat      theta_hat += Q(theta - eta g - theta_hat)   before that
        v_new   = beta grad(theta) + (1 - beta)(v + grad(theta) - grad(theta_old))        both on one batch
        g      <- g + v_new - v + gamma (W - I) g_hat          g_hat += Q(g + v_new - v - g_hat)           before that

    =========  =================  ==========================================================================
    symbol     argument           meaning
    =========  =================  ==========================================================================
    eta        lr                 step size
    gamma      gamma, gamma_g     consensus step of the model, and of the tracker (None: the same); "auto" measures it
    beta       beta               weight of the fresh gradient; 1 needs one gradient per step instead of two
    Q          compressor         given to the run; ``compressor_g`` for the tracker's message (None: the same)
    b_0        b0                 first batch, all local data by default
    =========  =================  ==========================================================================

    Memory 8 d per agent (7 d with beta = 1), two messages and 2 b gradients (b with beta = 1) per step.

    order: "alg1" uses this round's copies in the gossip, as printed; "stale" those of the previous round, then updates
        them, as the authors' multi-process code does (this is MoTEF-VR with copies that start at the model).
    heavy_ball: the step follows ``m = heavy_ball m + g``; 0.9 in the authors' code, none in the paper. Needs d more memory.

    Differs from the paper: nothing with the defaults (V_prev is not kept: the increment goes to g before v moves).

    >>> import torch, docom
    >>> A = torch.eye(2, dtype=torch.float64).expand(4, 2, 2) * torch.arange(1, 5).reshape(4, 1, 1)
    >>> problem = docom.problems.LeastSquares(A, torch.ones(4, 2))
    >>> run = docom.simulate(problem, DoCoM(lr=0.1, gamma=0.5, beta=0.1), compressor="topk:0.5", steps=300)
    >>> run.records[-1]["grad_norm_worst"] < 1e-4
    True
    """

    lr: Scheduled = learning_rate()
    gamma: Scheduled | str = consensus_step("model")
    beta: Scheduled = step_size(0.1, at_most=1, grid=WEIGHTS)
    gamma_g: Scheduled | str | None = consensus_step("tracker", default=None, like="gamma")
    compressor_g: Any = compressor_of("tracker")
    order: str = "alg1"
    heavy_ball: Scheduled = step_size(0.0, at_least=0, below=1)

    name: ClassVar[str] = "docom"
    channels: ClassVar[dict[str, str]] = {"model": "compressed", "tracker": "compressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    tracked: ClassVar[tuple[str, str] | None] = ("g", "v")
    full_start: ClassVar[bool] = True
    facts: ClassVar[Facts] = Facts(
        paper="Yau and Wai 2023",
        messages="2 compressed",
        gradients="2b (b if beta = 1)",
        memory=8,
        reaches_optimum=True,
        title="DoCoM",
        colour="#d62f4b",
        when="Noisy gradients, data that differ between agents, and a slow network; each step takes two gradients.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("alg1", "stale"):
            raise ValueError(f'docom: order is "alg1" (the paper) or "stale" (the authors\' code), got {self.order!r}')

    @property
    def points_per_step(self) -> int:
        """Two, except with beta = 1, where the old gradient is not used."""
        return 1 if self.schedules()["beta"] == schedules.Constant(1.0) else 2

    @property
    def known_early(self) -> tuple[int, ...]:
        """The old model: its gradient on the new batch needs no message."""
        return () if self.points_per_step == 1 else (1,)

    @property
    def reusable(self) -> tuple[int, ...]:
        """The old model: `absorb` reads its gradient only."""
        return self.known_early

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Alg. 1 l. 2-3: a common model, v and g from the first batch, copies at the model and at zero."""
        channels["model"].start(x0)
        channels["tracker"].start(0 * x0)
        rows = {"x": x0.clone(), "v": grad0.clone(), "g": grad0.clone()}
        if self.points_per_step == 2:
            rows["x_old"] = x0
        if self.schedules()["heavy_ball"].value > 0:
            rows["m"] = 0 * x0
        return State(**rows)

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Any]:
        """Alg. 1 l. 5-9."""
        x, model, direction = state.x, channels["model"], state.g
        if "m" in state.rows():
            direction = combine(state.m, (hyper.heavy_ball, state.m), (1, state.g))
        keep = () if self.points_per_step == 1 else ((state.x_old, [(1, x)]),)
        state.points = (x,) if self.points_per_step == 1 else (x, state.x_old)
        if self.order == "stale":
            combine_in_turn(*keep, (x, [(1, x), (-hyper.lr, direction), (hyper.gamma, model.gap)]))
            return model.begin_push(x)
        combine_in_turn(*keep, (x, [(1, x), (-hyper.lr, direction)]))  # l. 5: theta^{t+1/2}
        arriving = model.begin_push(x)  # l. 7
        return arriving.then(lambda gap: combine(x, (1, x), (hyper.gamma, gap)))  # l. 9, eq. docom_a and docom_b

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Alg. 1 l. 11-16."""
        v, g, tracker, beta = state.v, state.g, channels["tracker"], hyper.beta
        stale = () if self.order == "alg1" else ((hyper.gamma_g, tracker.gap),)
        fresh, old = grads[0], grads[-1]
        if len(grads) == 1:  # beta = 1: v is the gradient itself
            combine_in_turn((g, [(1, g), (1, fresh), (-1, v), *stale]), (v, [(1, fresh)]))
        else:  # l. 12: g + v_new - v before v is overwritten, then l. 11, eq. docom_c
            combine_in_turn(
                (g, [(1, g), (1, fresh), (-(1 - beta), old), (-beta, v), *stale]),
                (v, [(1, fresh), (1 - beta, v), (-(1 - beta), old)]),
            )
        del grads, fresh, old  # their memory may be used for the message
        gap = tracker.push(g)  # l. 14, eq. docom_e
        if self.order == "alg1":
            combine(g, (1, g), (hyper.gamma_g, gap))  # l. 16, eq. docom_d
