"""Evaluation when no process holds all data: the models are sent to the data.

Every process keeps the data of its agents. The models of its agents are passed around the ring of processes; each process adds
their evaluation on its own data (losses, gradients and counts of correct samples add up over agents), and they return with the
sums.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from docom.metrics import local_measures, overall_measures
from docom.problems import Evaluation, Problem
from docom.team import Talk
from docom.transports import blocks


@dataclass
class Visitor:
    """Some models and the sum of their evaluations so far."""

    rows: Tensor
    loss: Tensor
    correct: Tensor
    gradient: Tensor | None

    @staticmethod
    def fresh(rows: Tensor, gradient: bool) -> Visitor:
        """Models before their first visit."""
        zeros = torch.zeros(len(rows), dtype=torch.float64)
        return Visitor(rows, zeros, zeros.clone(), torch.zeros_like(rows) if gradient else None)

    def add(self, seen: Evaluation) -> None:
        """Add the evaluation by one process."""
        self.loss += seen.loss.double().cpu()
        if seen.correct is not None:
            self.correct += seen.correct.double().cpu()
        if self.gradient is not None and seen.gradient is not None:
            self.gradient += seen.gradient

    @property
    def parts(self) -> list[Tensor]:
        """All tensors that are sent."""
        found = [self.rows, self.loss, self.correct]
        return found if self.gradient is None else [*found, self.gradient]

    @property
    def size(self) -> int:
        """Bytes of these tensors."""
        return sum(part.numel() * part.element_size() for part in self.parts)

    def moved_on(self, talk: Talk, guest: Visitor) -> Visitor:
        """Send this one to the next process; return ``guest``, filled with the one from the previous process."""
        data = b"".join(part.contiguous().cpu().numpy().tobytes() for part in self.parts)
        arrived, start = bytearray(talk.shift(data, guest.size)), 0
        for part in guest.parts:
            size = part.numel() * part.element_size()
            part.copy_(torch.frombuffer(arrived[start : start + size], dtype=part.dtype).reshape(part.shape))
            start += size
        return guest


def measure_visiting(
    talk: Talk, problem: Problem, x: Tensor, gradient: bool, agents: Sequence[int]
) -> dict[str, float]:
    """`docom.metrics.measure` for the local models ``x`` of ``agents``; the same numbers at every process."""
    mean = mean_row(talk, x, problem.agents).unsqueeze(0)
    home = problem.evaluate(x, gradient, agents, test=True)
    travelled = _around(talk, problem, Visitor.fresh(x, gradient), home, gradient, agents)
    at_mean = problem.evaluate(mean, gradient, agents, test=talk.post.rank == 0)
    found = local_measures(
        x, mean, _completed(travelled, home), _completed(_summed(talk, mean, at_mean, gradient), at_mean)
    )
    counts = {"count": home.count, "test_count": home.test_count}
    return overall_measures([json.loads(said) for said in talk.words(json.dumps(found | counts))])


def _around(
    talk: Talk, problem: Problem, visitor: Visitor, home: Evaluation, gradient: bool, agents: Sequence[int]
) -> Visitor:
    """The local models after a visit to every process."""
    rank, world = talk.post.rank, talk.post.world
    sizes = [len(block) for block in blocks(problem.agents, world)]
    visitor.add(home)
    for hop in range(1, world + 1):
        count = sizes[(rank - hop) % world]
        empty = Visitor.fresh(visitor.rows.new_empty(count, visitor.rows.shape[1]), gradient)
        visitor = visitor.moved_on(talk, empty)
        if hop < world:
            visitor.add(problem.evaluate(visitor.rows, gradient, agents, test=False))
    return visitor


def _summed(talk: Talk, mean: Tensor, seen: Evaluation, gradient: bool) -> Visitor:
    """The evaluation by all processes of one model that all of them hold, summed in the order of the processes."""
    sums = Visitor.fresh(mean[:, :0], False)
    sums.gradient = torch.zeros_like(mean) if gradient else None
    sums.add(seen)
    parts = sums.parts
    flat = torch.cat([part.double().cpu().flatten() for part in parts])
    total = running_sum(talk, flat)
    for part, piece in zip(parts, total.split([part.numel() for part in parts]), strict=True):
        part.copy_(piece.reshape(part.shape))
    return sums


def _completed(visitor: Visitor, home: Evaluation) -> Evaluation:
    """The evaluation of models after they have visited all processes."""
    return Evaluation(
        visitor.loss,
        visitor.gradient,
        None if home.correct is None else visitor.correct,
        home.count,
        home.test_correct,
        home.test_count,
    )


def mean_row(talk: Talk, x: Tensor, n: int) -> Tensor:
    """The average ``[d]`` of all n agents' rows, summed in agent order."""
    return (running_sum(talk, *x.double().cpu()) / n).to(x)


def rows_in_turn(talk: Talk, x: Tensor, n: int) -> Iterator[tuple[Sequence[int], Tensor]]:
    """The rows of all agents in agent order: one process after the other sends its own to all others."""
    mine, d = talk.post.rank, x.shape[1]
    for giver, agents in enumerate(blocks(n, talk.post.world)):
        if giver == mine:
            others = [rank for rank in range(talk.post.world) if rank != mine]
            talk.give(dict.fromkeys(others, x.contiguous().cpu().numpy().tobytes()), {})
            yield agents, x
        else:
            data = talk.give({}, {giver: len(agents) * d * x.element_size()})[giver]
            yield agents, torch.frombuffer(bytearray(data), dtype=x.dtype).reshape(len(agents), d).to(x.device)


def running_sum(talk: Talk, *vectors: Tensor) -> Tensor:
    """The sum of all processes' vectors in double precision: passed from the first process to the last, which sends it to all."""
    rank, last = talk.post.rank, talk.post.world - 1
    total = torch.zeros_like(vectors[0])
    size = total.numel() * total.element_size()
    for giver in range(last + 1):
        if rank == giver:
            for vector in vectors:
                total += vector
            others = [giver + 1] if giver < last else range(last)
            talk.give(dict.fromkeys(others, total.numpy().tobytes()), {})
        elif rank == giver + 1 or giver == last:
            total = torch.frombuffer(bytearray(talk.give({}, {giver: size})[giver]), dtype=torch.float64)
        else:
            talk.give({}, {})
    return total
