"""The paper's first experiment: a linear classifier with sigmoid loss on LEAF's synthetic data."""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from torch import Tensor

from docom import rng
from docom.data import leaf_synthetic
from docom.problems.linear import LinearProblem


class LeafSynthetic(LinearProblem):
    """``f_i(theta) = 1/m_i sum_j sum_k phi(l_jk <x_j, theta_k>) + weight_decay/2 |theta|^2``, phi the logistic function.

    LEAF's synthetic data, generated here: 25 agents, 5 classes, 1,000 features and a constant one, 60% of each agent's
    samples for training: 1,443 of them, from 470 down to 3 per agent, most agents with one class only.

    Labels l_jk are +1 for the sample's class and -1 for the others, and the class predicted is that of the *lowest* score:
    minimising phi(l s) drives the score of the right class down. (The paper's text has labels 0 and 1, under which all but
    one term would be constant; its authors' code has -1 and 1.)

    Args:
        agents, classes, features, data_seed: of the generator; the defaults are the paper's data.
        weight_decay: the l2 weight lambda.
        split_seed: of the permutation that divides each agent's samples into training and test part.

    >>> LeafSynthetic().dimension
    5005
    """

    def __init__(
        self,
        agents: int = 25,
        classes: int = 5,
        features: int = 1000,
        weight_decay: float = 1e-4,
        data_seed: int = 931231,
        split_seed: int = 0,
    ) -> None:
        samples = leaf_synthetic.generate(agents, classes, features, data_seed)
        train, test = leaf_synthetic.split(samples, 0.6, split_seed)
        super().__init__(
            _with_constant([x for x, _ in train]),
            torch.from_numpy(np.concatenate([y for _, y in train])),
            [len(y) for _, y in train],
            classes,
            weight_decay,
            (_with_constant([x for x, _ in test]), torch.from_numpy(np.concatenate([y for _, y in test]))),
        )

    def start(self, seed: int) -> Tensor:
        """See `Problem.start`: uniform in +-1/sqrt(features), as the authors' code starts."""
        draws = rng.uniform(rng.Key(seed, rng.START), torch.zeros(1, dtype=torch.int64), 0, self.dimension)
        return ((2 * draws - 1) / sqrt(self.features.shape[1])).reshape(-1)

    def loss_and_slope(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """phi(l s) summed over the classes, phi' = phi (1 - phi)."""
        classes = torch.arange(self.scores, device=scores.device)
        signs = 2.0 * (targets.unsqueeze(-1) == classes).to(scores.dtype) - 1.0
        phi = torch.sigmoid(signs * scores)
        return phi.sum(dim=-1), signs * phi * (1 - phi)

    def hits(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Whether the right class has the lowest score."""
        return scores.argmin(dim=-1) == targets


def _with_constant(parts: list[np.ndarray]) -> Tensor:
    features = np.concatenate(parts)
    return torch.from_numpy(np.concatenate([features, np.ones((len(features), 1))], axis=1))
