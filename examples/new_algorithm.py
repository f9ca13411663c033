"""A new algorithm in about 20 lines: DSGD with compressed differences and a memory of past gradients.

Registered, it runs through everything: the simulator, every compressor and network, checkpoints, the contract tests.
Run it with ``python examples/new_algorithm.py``.
"""

from dataclasses import dataclass

import torch

import docom
from docom import combine


@docom.register
@dataclass(frozen=True)
class AveragedChoco(docom.Algorithm):
    """CHOCO-SGD along a running average of its gradients."""

    lr: float = docom.learning_rate()
    gamma: float | str = docom.consensus_step("model")
    beta: float = docom.step_size(0.2, at_most=1)
    name = "averaged-choco"
    channels = {"model": "compressed"}  # noqa: RUF012
    facts = docom.Facts("this example", "1 compressed", "b", 4, False)

    def init(self, x0, grad0, channels, hyper):
        channels["model"].start(x0)
        return docom.State(x=x0.clone(), m=grad0.clone())

    def advance(self, state, channels, hyper):
        combine(state.x, (1, state.x), (-hyper.lr, state.m))
        combine(state.x, (1, state.x), (hyper.gamma, channels["model"].push(state.x)))
        state.points = (state.x,)

    def absorb(self, state, grads, channels, hyper):
        combine(state.m, (1 - hyper.beta, state.m), (hyper.beta, grads[0]))


def main() -> None:
    """Eight agents on a torus, 4 bits per number."""
    draw = torch.Generator().manual_seed(0)
    A, b = torch.randn(8, 30, 20, generator=draw), torch.randn(8, 30, generator=draw)
    run = docom.simulate(
        docom.problems.LeastSquares(A, b),
        AveragedChoco(lr=0.05),
        topology="torus",
        compressor="quantize:4",
        steps=300,
        batch_size=4,
    )
    for record in run.records[::5]:
        print(f"step {record['step']:4d}  worst loss {record['loss_worst']:.4f}  gap {record['consensus_gap']:.4f}")


if __name__ == "__main__":
    main()
