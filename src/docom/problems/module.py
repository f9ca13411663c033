"""Any torch module with one data set per agent."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from docom.layout import Layout
from docom.problems.base import Evaluation, Problem, slices, subset
from docom.problems.footprint import UNKNOWN, Footprint, watch
from docom.problems.given import as_pair, as_pairs

Data = tuple[Tensor, Tensor]
CHUNK = 2048  # the most samples in a pass of an evaluation
LIGHT = 1 << 22  # the most numbers that such a pass computes per row
WHOLE = (
    1 << 27
)  # numbers up to which all samples of an agent pass through the module together when a gradient is computed
ROOM = {"cpu": 1 << 27, "gpu": 1 << 30}  # numbers from which on agents are computed one by one
CONVOLVED = 1 << 17  # numbers from convolutions per agent, from which on a CPU is faster with agents one by one
WATCHED = 4  # samples in the pass that is watched to find these numbers
LOOKS = 4  # gradients after which a module is assumed to do the same every time

# A warning about operations that vmap runs one by one, such as attention on a CPU; the user cannot do anything about it.
warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented the batching rule")


class ModuleProblem(Problem):
    """``f_i(x) = mean_j loss(module(x, a_j), b_j) + weight_decay / 2 |x|^2``.

    Args:
        module: its parameters are the common start; it is not changed.
        data: ``[(inputs, targets), ...]``, one pair per agent.
        loss: ``loss(outputs, targets)``, a mean over samples such as ``F.cross_entropy``.
        weight_decay: the l2 weight.
        test: ``(inputs, targets)`` for the test accuracy.
        capture: whether a GPU may capture a step and replay it.
        micro_batch: samples of an agent that pass through the module together when a gradient is computed; by default as many
            as a look at the module finds reasonable.

    Gradients of all agents come from one ``vmap`` over the module's parameters; on a CPU those of modules with many convolutions
    are computed one by one. A pass that would need much memory takes fewer samples at a time. Dropout draws new masks in every
    step, the same for both points of a step. Layers that update buffers as they run (BatchNorm with running statistics) are
    refused: agents in one process would share them. On a GPU the steps of a module that draws no random numbers and whose code
    does not depend on values are captured and replayed, so the module must do the same in every step; ``capture=False``
    turns this off.

    >>> ModuleProblem(nn.Linear(3, 2), [(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))] * 2).dimension
    8
    """

    def __init__(
        self,
        module: nn.Module,
        data: Sequence[Data],
        loss: Callable[[Any, Tensor], Tensor] = nn.functional.cross_entropy,
        weight_decay: float = 0.0,
        test: Data | None = None,
        capture: bool = True,
        micro_batch: int | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"ModuleProblem takes a torch.nn.Module, got {type(module).__name__}")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay must be >= 0, got {weight_decay}")
        if micro_batch is not None and not (type(micro_batch) is int and micro_batch >= 1):
            raise ValueError(f"micro_batch is a number of samples, 1 or more, got {micro_batch!r}")
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not named:
            raise ValueError("the module has no parameter that requires a gradient: there is nothing to train")
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
                raise ValueError(
                    f"{name or 'the module'} is a BatchNorm with running statistics, which agents in one process would "
                    "share; use GroupNorm, or track_running_stats=False"
                )
        self.module, self.loss, self.weight_decay = deepcopy(module), loss, weight_decay
        self.names = tuple(named)
        self.layout = Layout(tuple(tuple(p.shape) or (1,) for p in named.values()), self.names)
        self.shapes = [tuple(p.shape) for p in named.values()]
        self.data, self.capture, self._fixed = _checked(data), capture, True
        self.micro_batch = micro_batch
        self.test = None if test is None else as_pair(test, "the test set")
        classes = loss is nn.functional.cross_entropy and all(_are_classes(targets) for _, targets in self.data)
        self._loss_of_many = _cross_entropy_of_classes if classes else loss
        self._highest = max(int(targets.max()) for _, targets in self.data) if classes else -1
        self._looks = LOOKS
        self._footprint: Footprint | None = None
        self._watched = True
        self._joined: tuple[Tensor, Tensor, Tensor] | None = None
        self.counts = torch.tensor([len(targets) for _, targets in self.data])

    @property
    def capturable(self) -> bool:
        """See `Problem.capturable`: as far as was seen yet."""
        return self.capture and self._fixed

    def start(self, seed: int) -> Tensor:
        """See `Problem.start`: the module's own parameters."""
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1).to(torch.float64).cpu() for name in self.names])

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """See `Problem.to`."""
        other = self._with([_cast(pair, dtype, device) for pair in self.data])
        other.module = deepcopy(self.module).to(device=device, dtype=dtype)
        other.test = None if self.test is None else _cast(self.test, dtype, device)
        other.counts = self.counts.to(device)
        return other

    def only(self, agents: Sequence[int]) -> Self:
        """See `Problem.only`."""
        return self._with([pair if i in agents else (pair[0][:0], pair[1][:0]) for i, pair in enumerate(self.data)])

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients`."""
        if samples is None and len({len(self.data[agent][1]) for agent in agents.tolist()}) > 1:
            parts = [
                self.gradients([point[row : row + 1] for point in points], None, agents[row : row + 1], noise + row)
                for row in range(len(agents))
            ]
            return [torch.cat(rows) for rows in zip(*parts, strict=True)]
        return self._gradients(points, samples, agents, noise)

    def gradients_reusing(
        self, spent: int, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients_reusing`."""
        if samples is None:
            return super().gradients_reusing(spent, points, samples, agents, noise)
        return self._gradients(points, samples, agents, noise, spent)

    def _gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int, spent: int | None = None
    ) -> list[Tensor]:
        inputs, targets = self._gather(samples, agents)
        on_gpu = points[0].is_cuda
        if on_gpu and torch.cuda.is_current_stream_capturing():
            return [self._gradient(point, inputs, targets, number == spent) for number, point in enumerate(points)]
        found = []
        with _borrowed(points[0].device) as generators, self._explained():
            self._look(points[0][:1])
            for number, point in enumerate(points):
                for generator in generators:
                    generator.manual_seed(noise)  # one set of dropout masks for all points of a step
                if on_gpu and self.capturable and self._looks > 0:
                    self._looks -= 1
                    self._fixed = self._seen_fixed(generators, point, inputs, targets)
                found.append(self._gradient(point, inputs, targets, number == spent))
        return found

    def _look(self, row: Tensor) -> None:
        """Watch one pass, once. If it fails nothing is known, and the real pass will raise the error.

        Always over one sample, repeated, so that the result does not depend on when and where it is needed.
        """
        if self._footprint is not None:
            return
        sample = next((inputs[:1] for inputs, _ in self.data if len(inputs)), None)
        if sample is None:
            return
        leaves, samples = self._leaves(self._unflatten(row), True), sample.expand(WATCHED, *sample.shape[1:])
        with _borrowed(row.device):
            try:
                self._footprint = watch(lambda: functional_call(self.module, leaves, (samples,)), WATCHED)
            except Exception:
                self._footprint = UNKNOWN
                self._watched = False

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say that the module and the data do not go together, where not even the first look went well."""
        try:
            yield
        except (RuntimeError, TypeError, IndexError) as error:
            if self._watched:
                raise
            shape = list(next(inputs.shape[1:] for inputs, _ in self.data if len(inputs)))
            raise ValueError(
                f"the module fails on samples of shape {shape}, which are those of the data: {error}"
            ) from error

    def _leaves(self, parameters: dict[str, Tensor], gradient: bool) -> dict[str, Tensor]:
        """The parameters of a single row, as autograd takes them."""
        return {name: row[0].detach().requires_grad_(gradient) for name, row in parameters.items()}

    def _at_once(self, rows: Tensor, samples: int, most: int, given: int | None = None) -> tuple[int, int]:
        """How many rows, and how many samples of each, pass through the module together.

        most: the most numbers that the pass may compute per row; with more it takes fewer samples. given: samples, instead.
        """
        made, convolved = self._footprint or UNKNOWN
        on_cpu = rows.device.type == "cpu"
        width = min(samples, given or (max(1, int(most / made)) if made else samples))
        if on_cpu and width * convolved >= CONVOLVED:
            return 1, width
        room = ROOM["cpu" if on_cpu else "gpu"]
        return max(1, min(len(rows), int(room / (width * made)))) if made else len(rows), width

    def _seen_fixed(self, generators: list[torch.Generator], point: Tensor, inputs: Tensor, targets: Tensor) -> bool:
        """Whether a gradient is computed without random numbers and without the host waiting for a value."""
        before, mode = [generator.get_state() for generator in generators], torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch's warning that it does not detect every wait; the capture would fail at those
            torch.cuda.set_sync_debug_mode("error")
        try:
            self._gradient(point, inputs, targets)
        except RuntimeError:  # shown again below if it is another warning
            waits = True
        else:
            waits = False
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        drew = not all(map(torch.equal, before, [generator.get_state() for generator in generators]))
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
        return not (waits or drew)

    def _gradient(self, point: Tensor, inputs: Tensor, targets: Tensor, in_place: bool = False) -> Tensor:
        together, width = self._at_once(point, inputs.shape[1], WHOLE, self.micro_batch)
        parts = slices(inputs.shape[1], width)
        rows = point if in_place and len(parts) == 1 else torch.empty_like(point)
        for some in slices(len(point), together):
            self._write_gradient(rows[some], point[some], inputs[some], targets[some], parts)
        return point.copy_(rows) if in_place and rows is not point else rows

    def _write_gradient(
        self, rows: Tensor, point: Tensor, inputs: Tensor, targets: Tensor, parts: Sequence[slice]
    ) -> None:
        parameters, places = self._unflatten(point), self._unflatten(rows)
        for part in parts:
            gradients = self._gradient_on(parameters, inputs[:, part], targets[:, part])
            for name, place in places.items():
                if len(parts) == 1:  # with the decay, in one pass; it may be in place
                    torch.add(gradients[name], parameters[name], alpha=self.weight_decay, out=place)
                    continue
                if part.start == 0:
                    torch.mul(parameters[name], self.weight_decay, out=place)
                place.add_(gradients[name], alpha=(part.stop - part.start) / inputs.shape[1])

    def _gradient_on(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        if len(inputs) == 1:
            return self._of_one(parameters, inputs[0], targets[0])[0]
        found: dict[str, Tensor] = vmap(grad(self._loss_at), randomness="different")(parameters, inputs, targets)
        return found

    def _of_one(
        self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor, gradient: bool = True
    ) -> tuple[dict[str, Tensor], Tensor, Any]:
        """The gradient, loss and outputs of a single row.

        By autograd alone, which takes two thirds of the time if there is only one row.
        """
        with torch.set_grad_enabled(gradient):
            leaves = self._leaves(parameters, gradient)
            outputs = self._outputs(leaves, inputs)
            loss = self.loss(outputs, targets)
        found: Sequence[Tensor] = ()
        if gradient:
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        outputs = outputs.detach().unsqueeze(0) if isinstance(outputs, Tensor) else outputs
        gradients = {name: piece.unsqueeze(0) for name, piece in zip(leaves, found, strict=False)}
        return gradients, loss.detach().unsqueeze(0), outputs

    def _gather(self, samples: Tensor | None, agents: Tensor) -> Data:
        if samples is None:
            chosen = [self.data[agent] for agent in agents.tolist()]
            return torch.stack([x for x, _ in chosen]), torch.stack([y for _, y in chosen])
        if self._joined is None:
            self._joined = self._join()
        inputs, targets, offsets = self._joined
        positions = offsets[agents].unsqueeze(1) + samples
        return inputs[positions], targets[positions]

    def _join(self) -> tuple[Tensor, Tensor, Tensor]:
        """All samples one after the other, and where those of each agent begin; the agents' tensors become views of them."""
        counts = [len(targets) for _, targets in self.data]
        inputs, targets = torch.cat([x for x, _ in self.data]), torch.cat([y for _, y in self.data])
        self.data = list(zip(inputs.split(counts), targets.split(counts), strict=True))
        here = torch.tensor(counts, device=inputs.device)
        return inputs, targets, here.cumsum(0) - here

    def _with(self, data: list[Data]) -> Self:
        other = copy(self)
        other.data, other._joined = data, None
        return other

    def _unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        pieces = rows.split(self.layout.sizes, dim=1)
        return {
            name: piece.reshape(len(rows), *shape)
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def _loss_at(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss_of_many(self._outputs(parameters, inputs), targets)

    def _loss_and_outputs(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> tuple[Tensor, Any]:
        outputs = self._outputs(parameters, inputs)
        return self.loss(outputs, targets), outputs

    def _outputs(self, parameters: dict[str, Tensor], inputs: Tensor) -> Any:
        outputs = functional_call(self.module, parameters, (inputs,))
        if isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] <= self._highest:
            raise ValueError(
                f"there are targets of class {self._highest}, but the module has scores for {outputs.shape[1]} classes, "
                f"0 to {outputs.shape[1] - 1}"
            )
        return outputs

    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        """See `Problem.evaluate`: all rows at once, some thousand samples at a time, without dropout."""
        self._look(rows[:1])
        training = self.module.training
        self.module.eval()
        try:
            chosen = list(range(self.agents)) if agents is None else list(agents)
            with_test = agents is None if test is None else test
            together, width = self._at_once(rows, CHUNK, LIGHT)
            with self._explained():
                parts = [
                    self._evaluate(rows[s], gradient, chosen, with_test, width) for s in slices(len(rows), together)
                ]
            return Evaluation.of_all(parts)
        finally:
            self.module.train(training)

    def _evaluate(self, rows: Tensor, gradient: bool, agents: list[int], with_test: bool, width: int) -> Evaluation:
        share = len(agents) / self.agents
        parameters = self._unflatten(rows)
        result = Evaluation(0.5 * self.weight_decay * share * (rows**2).sum(dim=1), None)
        if gradient:
            result.gradient = self.weight_decay * share * rows
        for agent in agents:
            inputs, targets = self.data[agent]
            for x, y in zip(inputs.split(width), targets.split(width), strict=True):
                weight = len(y) / (len(targets) * self.agents)
                outputs = self._add_chunk(result, parameters, x, y, weight)
                hits = _hits(outputs, y)
                if hits is not None:
                    result.correct = hits if result.correct is None else result.correct + hits
                    result.count += len(y)
        if with_test and self.test is not None:
            for x, y in zip(self.test[0].split(width), self.test[1].split(width), strict=True):
                hits = _hits(self._outputs_of_all(parameters, x), y)
                if hits is not None:
                    result.test_correct = hits if result.test_correct is None else result.test_correct + hits
                    result.test_count += len(y)
        return result

    @torch.no_grad()
    def _outputs_of_all(self, parameters: dict[str, Tensor], x: Tensor) -> Any:
        return vmap(lambda p, a: functional_call(self.module, p, (a,)), in_dims=(0, None))(parameters, x)

    def _add_chunk(self, result: Evaluation, parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: float) -> Any:
        """Add the chunk's loss (and gradient) to the result; return the outputs."""
        gradients, loss, outputs = self._of_all(parameters, x, y, result.gradient is not None)
        if result.gradient is not None:
            rows = torch.cat([gradients[name].reshape(len(loss), -1) for name in self.names], dim=1)
            result.gradient = result.gradient + weight * rows
        result.loss = result.loss + weight * loss.detach()
        return outputs

    def _of_all(
        self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, gradient: bool
    ) -> tuple[dict[str, Tensor], Tensor, Any]:
        """`_of_one` for any number of rows, on the same samples."""
        if len(parameters[self.names[0]]) == 1:
            return self._of_one(parameters, x, y, gradient)
        if gradient:
            batched = vmap(grad_and_value(self._loss_and_outputs, has_aux=True), in_dims=(0, None, None))
            gradients, (loss, outputs) = batched(parameters, x, y)
            return gradients, loss, outputs
        with torch.no_grad():
            loss, outputs = vmap(self._loss_and_outputs, in_dims=(0, None, None))(parameters, x, y)
        return {}, loss, outputs

    def model(self, row: Tensor) -> nn.Module:
        """See `Problem.model`: a copy of the module with these parameters."""
        module = deepcopy(self.module)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, values in self._unflatten(row.unsqueeze(0)).items():
                parameters[name].copy_(values[0])
        return module

    def sampled(self, count: int, seed: int) -> Self:
        """See `Problem.sampled`."""
        kept = subset(self.counts.tolist(), count, seed)
        other = self._with([(x[rows], y[rows]) for (x, y), rows in zip(self.data, kept, strict=True)])
        other.counts = torch.tensor([len(rows) for rows in kept], device=self.counts.device)
        if self.test is not None:
            (rows,) = subset([len(self.test[1])], count, seed)
            other.test = (self.test[0][rows], self.test[1][rows])
        return other

    def data_bytes(self) -> int:
        """See `Problem.data_bytes`."""
        return sum(x.numel() * x.element_size() for x, _ in self.data)


_lending = threading.RLock()


@contextmanager
def _borrowed(device: torch.device) -> Iterator[list[torch.Generator]]:
    """Torch's generators for a device, restored to their old state afterwards.

    Every module of the process draws from them, so that one thread at a time has them: gradients of modules in several threads
    are found one after the other.

    ``torch.manual_seed`` would record the whole call stack for GPUs that were never used, which takes longer than the
    gradients of a small module.
    """
    with _lending:
        generators = [torch.default_generator]
        if device.type == "cuda":
            generators.append(
                torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
            )
        states = [generator.get_state() for generator in generators]
        try:
            yield generators
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


def _checked(data: Sequence[Data]) -> list[Data]:
    data = as_pairs(data)
    if not data:
        raise ValueError("data is empty; give one (inputs, targets) pair per agent")
    for agent, (inputs, targets) in enumerate(data):
        if len(inputs) != len(targets) or len(targets) == 0:
            raise ValueError(
                f"agent {agent} has {len(inputs)} inputs and {len(targets)} targets; the numbers must be equal and not 0"
            )
        if inputs.shape[1:] != data[0][0].shape[1:]:
            raise ValueError(
                f"agent {agent}'s inputs have shape {tuple(inputs.shape[1:])}, agent 0's {tuple(data[0][0].shape[1:])}"
            )
        for name, part in (("inputs", inputs), ("targets", targets)):
            if part.is_floating_point() and not bool(torch.isfinite(part).all()):
                raise FloatingPointError(f"agent {agent}'s {name} hold a NaN or an infinity")
    return list(data)


def _are_classes(targets: Tensor) -> bool:
    """Whether targets are class numbers, none of them to be ignored."""
    return targets.ndim == 1 and targets.dtype == torch.int64 and bool((targets >= 0).all())


def _cross_entropy_of_classes(scores: Tensor, targets: Tensor) -> Tensor:
    """``F.cross_entropy`` in few operations; under ``vmap`` torch's own becomes thirty, a tenth of a small module's time."""
    if scores.ndim != 2:
        return nn.functional.cross_entropy(scores, targets)
    return -scores.log_softmax(dim=1).gather(1, targets.unsqueeze(1)).mean()


def _cast(pair: Data, dtype: torch.dtype, device: str | torch.device) -> Data:
    inputs, targets = (part.to(device, dtype if part.is_floating_point() else None) for part in pair)
    return inputs, targets


def _hits(outputs: Any, targets: Tensor) -> Tensor | None:
    """How many samples each row classifies correctly; None if outputs are not class scores."""
    classes = not targets.is_floating_point() and targets.ndim == 1
    if not classes or not isinstance(outputs, Tensor) or outputs.ndim != 3:
        return None
    return (outputs.argmax(dim=2) == targets).sum(dim=1)
