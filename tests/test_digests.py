"""Digests by which processes see that they have built the same problem."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from docom.distribute.digests import digest
from docom.problems import ModuleProblem
from launching import environment


class Wide(nn.Module):
    """A module of the user's own."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale, self.layer = scale, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)


class Wider(Wide):
    def forward(self, x: Tensor) -> Tensor:
        return self.scale + self.layer(x)


def softened(amount: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, label_smoothing=amount)


def of_module(module: nn.Module, loss: Any = nn.functional.cross_entropy, seed: int = 0) -> str:
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    data = [(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))] * 2
    return digest(vars(ModuleProblem(module, data, loss)))


def test_digests_tell_modules_and_losses_apart() -> None:
    """Processes with different networks must not take one another for partners; equal ones must."""

    def layers(act: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 2))

    with_buffer = [layers(nn.ReLU()) for _ in range(2)]
    for number, module in enumerate(with_buffer):
        module.register_buffer("mean", torch.full((3,), float(number)), persistent=False)
    trained = layers(nn.ReLU()), layers(nn.ReLU()).eval()
    smoothing = partial(nn.functional.cross_entropy, label_smoothing=0.2)
    different = [
        of_module(layers(nn.ReLU())), of_module(layers(nn.Tanh())), of_module(layers(nn.ReLU()), seed=1),
        of_module(layers(nn.LeakyReLU(0.1))), of_module(layers(nn.LeakyReLU(0.2))),
        *map(of_module, with_buffer), of_module(trained[1]),
        of_module(Wide()), of_module(Wide(2.0)), of_module(Wider()),
        of_module(Wide(), softened(0.1)), of_module(Wide(), softened(0.2)), of_module(Wide(), smoothing),
        of_module(Wide(), nn.CrossEntropyLoss()), of_module(Wide(), nn.CrossEntropyLoss(label_smoothing=0.2)),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert of_module(trained[0]) == different[0]
    assert of_module(Wide(), softened(0.1)) == of_module(Wide(), softened(0.1))


def test_digests_do_not_depend_on_the_process() -> None:
    """Neither on where things lie in memory nor on the order in which a set is walked."""
    code = (
        "import torch; from torch import nn; from docom.distribute.facts import digest\n"
        "from docom.problems import ModuleProblem\n"
        "module = nn.Sequential(nn.Embedding(3, 2), nn.TransformerEncoderLayer(2, 1, 4, batch_first=True))\n"
        "for parameter in module.parameters(): nn.init.ones_(parameter)\n"
        "module.names = {'some', 'unordered', 'names'}\n"
        "class Own(torch.autograd.Function): pass\n"
        "module.kind = Own\n"
        "data = [(torch.ones(2, 1, dtype=torch.int64), torch.zeros(2, 1, 2))]\n"
        "print(digest(vars(ModuleProblem(module, data, lambda o, t: (o - t).square().mean()))))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment(PYTHONHASHSEED=seed),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1] != ""


def test_what_cannot_be_compared_is_refused() -> None:
    module = nn.Linear(3, 2)
    module.guard = threading.Lock()
    holder: list[Any] = [module]
    with pytest.raises(ValueError, match=r"\[0\]\.guard is a _thread\.lock, whose content cannot be compared"):
        digest(holder)
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(ValueError, match=r"data is a torch\.Tensor, whose content cannot be compared"):
        digest({"data": sparse})


def test_objects_that_hold_themselves_have_a_digest() -> None:
    one: list[Any] = [1]
    one.append(one)
    other: list[Any] = [2]
    other.append(other)
    assert digest(one) != digest(other)
