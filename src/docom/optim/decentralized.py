"""The optimizer: a shell around an algorithm, its channels and the processes of the program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from docom.algorithms import Algorithm
from docom.channels import Gossip, check_form
from docom.compressors import Compressor
from docom.numerics import combine
from docom.optim import parameters
from docom.optim.agent import Agent, Rate
from docom.optim.agent_files import AgentFiles, write
from docom.optim.parameters import Flat, digest
from docom.optim.ranks import Ranks, agents_and_ranks, local
from docom.optim.replay import Draws, replayed, why_not
from docom.optim.resharding import ABOUT, Division, parsed
from docom.optim.running_statistics import RunningStatistics, measured
from docom.optim.step_sizes import rate_schedule, rates, shrinks
from docom.optim.surroundings import Surroundings, check, check_apart, check_mesh, check_site, plain
from docom.optim.together import start_from_first, true_anywhere
from docom.optim.walk import Walk, begun, check_walk
from docom.team import join

if TYPE_CHECKING:
    from docom.sites import Site

OWN = "docom"  # what of a state_dict is this optimizer's own
COMMON = "the model at the first step (load it before the optimizer is made)"


class Decentralized(Optimizer):
    """Train a model on this agent's data, and reach agreement on it with the neighbours.

    Args:
        params: as for any torch optimizer: parameters, named parameters, or groups of them, each with its own ``lr`` and
            ``weight_decay`` if wanted.
        algorithm: see `docom.algorithms`; its lr is that of groups which have none of their own.
        topology: a name ("ring", "exponential", "erdos-renyi:0.3"), a networkx graph, or a mixing matrix.
        weights: "uniform", "metropolis", "lazy", "max-degree" or a matrix; see `docom.weights.network`.
        compressor: a name ("topk:0.05", "quantize:4", "topk:0.05,scope=tensor,whole=1000") or an object.
        model: the module, for its buffers: they start as agent 0's, and a second call of the closure leaves them alone.
        buffers: running statistics of norm layers are "local", or "average": mixed with the neighbours' after every step and
            averaged by `consensus_`; this needs ``model``.
        dtype: of the optimizer's own rows: float64 for float64 models, else float32.
        weight_decay: decoupled, of groups that have none of their own: before each step the model is multiplied with
            1 - lr * weight_decay. It is not part of gradients, trackers or momentum.
        inner: a torch optimizer of the same parameters, for local steps: `step` takes one of its steps, and every so often the
            method's step on how far they have moved the model. The parameter groups, and with them learning rate schedulers, are
            then those of the inner optimizer; the algorithm's lr is the outer step size, 1 the plain one.
        every: with ``inner``, how many of its steps this agent takes between messages, or a time such as "60s". It may differ
            between agents: a pseudo-gradient is scaled by the mean number of steps over the agent's own.
        overlap: with ``inner``, how many of its steps are taken while messages travel.
        rows: "full"; or what this object's rows are between its steps: "host", in the host's memory, or "bf16", public copies
            in 16 bits (see `docom.channels.resting`). Not together with ``overlap``.
        seed: of compression noise and random topologies.
        peer_timeout: the longest time, in seconds, to wait for a neighbour.
        mesh: for agents of several processes each, their ranks: a ``DeviceMesh`` with the dimension "agents" and one more, such
            as `docom.optim.ranks.EXAMPLE` makes. DDP or FSDP2 work within an agent, over the other dimension.
        group: the processes that are agents: a ``ProcessGroup`` or a ``DeviceMesh`` of one dimension. By default all: those of
            the default group where the program has made one, else those that torchrun, srun or mpirun has started.
        backend: "gloo", "nccl" or "mpi", where the processes have no group yet; by default NCCL for a GPU each, else gloo.
        site: this process is one site of a federation, ``docom.Site("federation.yaml", "NAME")``, and needs no launcher. The
            members' file says who is linked with whom, and how long to wait, so topology, weights, peer_timeout, group and
            backend are left out.

    Each process of the group is one agent, or with ``mesh`` one rank of an agent. All agents start from agent 0's parameters.

    The first `step` initialises the method from its batch, which plays the part of b0; a larger first batch gives a better
    start.
    """

    # Makes GradScaler call `step` even if this agent's gradients overflowed: the neighbours wait for its message.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Any,
        algorithm: Algorithm,
        topology: Any = "ring",
        weights: Any = None,
        compressor: str | Compressor | Gossip | None = "none",
        *,
        model: nn.Module | None = None,
        buffers: str = "local",
        dtype: torch.dtype | None = None,
        weight_decay: float = 0.0,
        inner: Optimizer | None = None,
        every: int | str = 1,
        overlap: int = 0,
        rows: str = "full",
        seed: int = 0,
        peer_timeout: float = 300.0,
        mesh: Any = None,
        group: Any = None,
        backend: str | None = None,
        site: Site | None = None,
    ) -> None:
        check(algorithm, model, buffers, dtype)
        parameters.check_keys(0, {"weight_decay": weight_decay}, algorithm)
        self.algorithm = algorithm  # its automatic consensus steps are filled in at the first step
        self.model, self.buffers, self.rows = model, buffers, check_form(rows)
        if overlap and rows != "full":
            raise ValueError(f'overlap leaves messages under way, which needs all rows; leave out rows="{rows}"')
        self._agent: Agent | None = None
        self._around: Surroundings | None = None
        self._walk: Walk | None = None
        self._flat: Flat
        self._kept: Tensor | None = None  # the parameters in the middle of a walk, while they hold the average
        super().__init__(params, {"lr": rate_schedule(algorithm).value, "weight_decay": weight_decay})
        if inner is not None:
            check_walk(algorithm, inner, every, overlap, weight_decay, self.param_groups)
            self.param_groups = inner.param_groups
        elif every != 1 or overlap:
            raise ValueError(
                "every and overlap belong to local steps: give inner, a torch optimizer of the same parameters"
            )
        device = parameters.check(self.param_groups)
        self._ranks = Ranks()
        if mesh is not None:
            check_mesh(site=site, group=group, backend=backend)
            group, self._ranks = agents_and_ranks(mesh, peer_timeout)
        self._ranks.check(parameters.describe(self.param_groups))
        if site is None:
            self._team = join(os.environ, backend, peer_timeout, device, group)
        else:
            left_out = {
                "topology": isinstance(topology, str) and topology == "ring",
                "weights": weights is None,
                "peer_timeout": peer_timeout == 300,
            }
            check_site(left_out | {"group": group is None, "backend": backend is None})
            if site.federation.skipping is not None:
                check_apart(algorithm, buffers, overlap)
            self._team = site.team()
            topology = site.federation.network
        self._team.agents(self._team.world)  # one per process
        self._around = Surroundings(algorithm, self._team, self._ranks, topology, weights, compressor, seed)
        self.dtype = dtype or self._row_type()
        self._statistics = RunningStatistics(model if buffers == "average" else None, self.dtype)
        self._measured: dict[str, float] = {}
        self._sent_before = 0
        if inner is not None:
            self._walk = Walk(inner, every, overlap, algorithm, self._team, self._ranks)
        self._begin_together([p for group in self.param_groups for p in group["params"]])
        if model is not None:
            start_from_first(self._team, model.buffers())

    # What a torch optimizer does

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; return the closure's loss, which is that of the model as it was before.

        closure: clears the gradients, computes the loss on this step's batch, calls ``backward`` and returns the loss.
            Methods that compare two models on one batch run it twice and require it; for others ``step()`` after
            ``backward()`` is enough.
        """
        if self._team.continues:
            raise RuntimeError(
                self._at("this site continues a run: give load_state_dict the state from site.load() first")
            )
        if self._walk is not None:
            return self._walk_on(self._walk, closure)
        two = self.algorithm.points_per_step > 1
        overflow = getattr(self, "found_inf", None)  # what a GradScaler has found, if there is one
        if (reason := why_not(self.algorithm, closure is not None, overflow is not None)) is not None:
            raise RuntimeError(self._at(reason))
        self._check_model()
        draws = Draws.now(self.device) if two else None
        loss = None if closure is None else _with_gradients(closure)
        if overflow is not None and true_anywhere(self._team, self._overflows(overflow)):
            return loss  # some agent's gradients overflowed in fp16: all skip the step
        gradients = [self._flat.gradients(0, getattr(self, "grad_scale", None))]
        if self._agent is None:
            self._agent = self._start(gradients[0])
        else:
            if draws is not None and closure is not None:
                gradients.append(self._old_gradient(closure, draws, self._agent.points[1]))
            self._decay_by(gradients[0])
            self._agent.absorb(gradients)
        self._agent.advance(self._rate(self._agent.step), self._shrink(self._agent.step))
        self._team.after_step(self._agent, inf)
        self._flat.publish(self._agent.points[0])
        self._agent.rest()
        self._statistics.mix()
        return loss

    def _walk_on(self, walk: Walk, closure: Callable[[], Any] | None) -> Any:
        """One inner step, and the method's step if it is time for it."""
        overflow, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if (reason := why_not(self.algorithm, closure is not None, overflow is not None)) is not None:
            raise RuntimeError(self._at(reason))
        if self._kept is not None:
            raise RuntimeError(self._at("the parameters hold the average of all agents; call restore_() to continue"))
        if walk.start is None:
            self._begin_walk(walk)
        loss = None
        if overflow is not None and self._overflows(overflow):
            walk.count()  # no step: this agent's gradients overflowed in fp16
        else:
            correction = None if self._agent is None else self._agent.state.correction
            correction = correction if walk.held is None else walk.held
            loss = walk.step(self._flat, closure, correction, scale)
        if walk.arrives and self._agent is not None:
            walk.finish()
            walk.take_up(self._flat, self._agent.points[0])
        if walk.due:
            self._exchange(walk)
        return loss

    def _begin_walk(self, walk: Walk) -> None:
        """The first walk starts from the common model."""
        if self._flat.thawed() is not None:
            self._flat = self._flattened()
        x0 = self._flat.row()
        self._agree_on_start(x0)
        walk.begin(x0)

    def _exchange(self, walk: Walk) -> None:
        """The method's step on where the walk has led."""
        if self._agent is not None:
            self._agent.wake()
        rows = walk.rows(self._flat)
        path = self._flat.per_group("path", walk.rates)
        if self._agent is None:
            assert walk.start is not None
            gamma = self._surroundings.automatic_gamma(self._flat.layout)
            self._agent = self._new_agent(walk.start, rows, gamma, path)
        else:
            self._agent.path = path
            self._agent.absorb(rows)
        del rows  # their memory is needed for messages
        rate = rate_schedule(self.algorithm)(self._agent.step)
        if walk.overlap:
            self._statistics.mix()  # no other exchange begins while those of the method are under way
            walk.begin(self._agent.points[0])
            arriving = self._agent.begin_advance(rate)
            walk.leave(arriving, self._flat, self._agent.state.correction)
        else:
            self._agent.advance(rate)
            self._team.after_step(self._agent, inf)
            x = self._agent.points[0]
            walk.begin(begun(self._flat, x, x), self._agent.free_row)
            self._agent.rest()
            self._statistics.mix()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, before the first step only; every process must add the same."""
        if self._agent is not None:
            raise RuntimeError(
                self._at(
                    "a parameter group cannot be added once agents exchange messages; add it before the first step"
                )
            )
        if self._walk is not None:
            raise RuntimeError(self._at("add the group to the inner optimizer before this one is made"))
        parameters.check_keys(len(self.param_groups), param_group, self.algorithm)
        super().add_param_group(param_group)
        if self._around is not None:
            parameters.check(self.param_groups)
            self._begin_together(self.param_groups[-1]["params"])

    def state_dict(self) -> dict[str, Any]:
        """What torch's optimizers save, and this agent's rows; save one file per agent.

        Tensors, numbers and strings only, so ``torch.load(weights_only=True)`` reads it. As with every torch optimizer
        the tensors are the optimizer's own, not copies. With ``mesh`` it is tensors by name, divided over the ranks of the agent
        as the parameters are; every rank calls it, and `save` and `load` keep it.
        """
        saved = super().state_dict()
        saved[OWN] = {"agent": self.agent, "settings": self._settings(), "started": self._agent is not None}
        if self._agent is not None:
            self._agent.wake()
        if self._walk is not None and self._walk.start is not None:
            self._walk.finish()
            saved[OWN]["walk"] = self._walk.saved(self._flat)
        if self._agent is not None:
            sent = self._bytes() if self._ranks.mesh is None else self._ranks.each(self._bytes())
            own = {"method": self._agent.saved(), "gamma": self._gamma, "bytes": sent}
            saved[OWN] |= own | {"statistics": self._statistics.rounds}
        if state := self._team.state():
            saved[OWN]["team"] = torch.frombuffer(bytearray(state), dtype=torch.uint8)
        return saved if self._ranks.mesh is None else self._division().to_tensors(saved)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit; the model's trained parameters are set to their values of that time."""
        if self._ranks.mesh is not None and ABOUT in state_dict:
            self._agent, state_dict = None, self._division().from_tensors(state_dict)
        if OWN not in state_dict:
            raise ValueError("this is not the state of a Decentralized optimizer: it holds no rows of an agent")
        self._load(state_dict, state_dict[OWN])
        if self._team.continues:
            self._team.resume(state_dict[OWN]["team"].numpy().tobytes())

    def save(self, folder: str | Path) -> None:
        """Write this agent's state to ``folder/agent-N``, where agents have ranks; all processes call it."""
        write(self._own_folder(folder), self.state_dict(), self._ranks)

    def load(self, folder: str | Path) -> None:
        """Continue from what `save` has written, with as many agents and any number of ranks; all processes call it."""
        files = AgentFiles(self._own_folder(folder), self._ranks)
        about = files.about()
        try:
            wanted = self._division().expected(parsed(about), files.sizes)
        except LookupError:
            raise ValueError(self._at("the state does not fit these parameters: it has other tensors")) from None
        self.load_state_dict(files.read(wanted) | {ABOUT: about})
        self._team.agree({"step of the state": str(self.stats["step"])}, "agent")

    def _own_folder(self, folder: str | Path) -> Path:
        if self._ranks.mesh is None:
            raise RuntimeError(
                "save and load are for agents with ranks (mesh=); for others torch.save(opt.state_dict(), one file per agent)"
            )
        return Path(folder) / f"agent-{self.agent}"

    def _division(self) -> Division:
        return Division(self.param_groups, self._flat, self._ranks)

    def _load(self, state_dict: dict[str, Any], own: dict[str, Any]) -> None:
        mine = {"agent": str(self.agent)} | self._settings()
        theirs = {"agent": str(own["agent"])} | own["settings"]
        different = [f"{k}: {theirs.get(k)} there, {v} here" for k, v in mine.items() if theirs.get(k) != v]
        if different:
            raise ValueError(self._at(f"the state is of another run ({'; '.join(different)})"))
        if self._walk is None:
            super().load_state_dict({k: v for k, v in state_dict.items() if k != OWN})
            for group in self.param_groups:
                group.setdefault("weight_decay", 0.0)  # as saved before groups had one
        elif "walk" in own:
            self._walk.finish()
            self._walk.load(own["walk"], self._flat)
            self.param_groups = self._walk.inner.param_groups
        if not own["started"]:
            self._agent = None
            return
        if self._agent is None:
            row = self._flat.row()
            self._agent = self._new_agent(row, [row], own["gamma"])
        if self._ranks.mesh is not None:  # what another number of ranks cannot continue starts again
            own["method"]["links"] = self._agent.channels.rows() | own["method"]["links"]
        self._agent.load(own["method"])
        self._sent_before = self._ranks.of_each(own["bytes"]) - self._team.bytes_sent
        self._statistics.resume(own["statistics"])
        if self._walk is None:
            self._flat.publish(self._agent.points[0])

    def __repr__(self) -> str:
        around = self._surroundings
        about = f"agent {self.agent} of {self.agents}: {around.network}"
        return f"{self.algorithm}\n{about}\ncompressor: {plain(around.settings)}\n{super().__repr__()}"

    # What only agents do

    @property
    def agent(self) -> int:
        """The number of this process's agent."""
        return self._team.rank

    @property
    def agents(self) -> int:
        """How many there are."""
        return self._team.world

    @property
    def rank(self) -> int:
        """The number of this process within its agent; 0 where an agent is one process."""
        return self._ranks.position

    @property
    def ranks(self) -> int:
        """How many processes an agent is."""
        return self._ranks.count

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self._flat.device

    @property
    def stats(self) -> dict[str, float | None]:
        """The present state of the run, without any communication.

        step: steps done, with an inner optimizer rounds of messages, and ``inner_steps`` its steps. bytes: what this agent
        has sent, headers included. wire_bytes: all agents' messages as encoded. bits: one agent's by the papers' formula.
        consensus_distance, tracking_error: as of the last `measure`, whose step is ``measured_at``; None before. Where an agent
        has several ranks, bytes, wire_bytes and bits are of this rank and those in its position, and ``agent_bytes`` is what
        all ranks of the agent had sent at the last `measure`.
        """
        unknown: dict[str, float | None] = {"consensus_distance": None, "tracking_error": None, "measured_at": None}
        if self._ranks.mesh is not None:
            unknown["agent_bytes"] = None
        step, wire_bytes, bits = 0, 0, 0.0
        walked = {} if self._walk is None else {"inner_steps": self._walk.all_taken}
        if self._agent is not None:
            step, channels = self._agent.step, self._agent.channels
            wire_bytes = channels.wire_bytes + self._statistics.wire_bytes
            bits = channels.bits + self._statistics.bits
        return {
            "step": step,
            **walked,
            "bytes": self._bytes(),
            "wire_bytes": wire_bytes,
            "bits": bits,
            **unknown,
            **self._measured,
        }

    @torch.no_grad()
    def measure(self) -> dict[str, float | None]:
        """Measure how far agents are apart, by all-reduces of whole vectors; every process must call it. Returns `stats`.

        A site with ``mode: skip`` calls it alone, and finds ``neighbour_gap``: the mean distance of its model from its
        neighbours', as it last knew them.
        """
        if self._agent is not None and self._team.apart:
            self._measured = self._team.measures() | {"measured_at": self._agent.step}
        elif self._agent is not None:
            if self._walk is not None:
                self._walk.finish()
            self._mean_model(self._agent)
        return self.stats

    @torch.no_grad()
    def consensus_(self) -> None:
        """Put the average of all agents' models into the parameters, everywhere the same; every process must call it.

        The method's own rows are not changed: to continue training afterwards, call `restore_`.
        """
        if self._team.apart:
            raise ValueError(
                self._at("with mode: skip no site has the models of all; keep the own one, or use mode: wait")
            )
        if self._agent is None:
            return
        if self._walk is not None:
            self._walk.finish()
            self._kept = self._flat.row() if self._kept is None else self._kept
        self._flat.write(self._mean_model(self._agent))
        self._statistics.average(self._team)

    @torch.no_grad()
    def restore_(self) -> None:
        """Put this agent's own model back into the parameters, after `consensus_` or any other change to them."""
        if self._kept is not None:
            self._flat.write(self._kept)
            self._kept = None
        elif self._agent is not None and self._walk is None:
            self._flat.publish(self._agent.points[0])

    # How it is done

    def _begin_together(self, params: Iterable[Tensor]) -> None:
        """Check that all processes were given the same settings, and start from the first one's parameters."""
        self._flat = self._flattened()
        if self._walk is None:  # an inner optimizer's settings are the agent's own
            rates = ", ".join(str(group["lr"]) for group in self.param_groups)
            decays = ", ".join(str(group["weight_decay"]) for group in self.param_groups)
            self._agree({"lr": rates, "weight_decay": decays})
        else:
            every = {"every": str(self._walk.every)} if self._team.apart else {}  # where all meet, they have said it
            self._agree(every)
        with torch.no_grad():
            start_from_first(self._team, map(local, params))

    def _flattened(self) -> Flat:
        return Flat(self.param_groups, self.dtype, self._ranks)

    def _start(self, gradient: Tensor) -> Agent:
        """The method before its first step, from the common model and the gradient of the first batch."""
        x0 = self._flat.row()
        self._decay_by(gradient)
        self._agree_on_start(x0)
        return self._new_agent(x0, [gradient], self._surroundings.automatic_gamma(self._flat.layout))

    def _agree_on_start(self, x0: Tensor) -> None:
        """Compare the models from which the agents start, and those of the ranks of an agent."""
        self._agree({COMMON: digest(x0)}, {"what all ranks hold of the model": self._flat.replicated()})

    def _agree(self, more: dict[str, str], inside: dict[str, str] | None = None) -> None:
        """Compare the settings, and more, of all agents; first, with what is ``inside``, of the ranks of an agent."""
        facts = self._settings()
        try:
            self._ranks.agree(facts | (inside or {}))
            self._team.agree(facts | more, "agent")
        except ValueError as error:
            raise ValueError(self._at(str(error))) from None

    def _overflows(self, found: Any) -> bool:
        """Whether the gradients of this agent overflowed, at any of its ranks."""
        return true_anywhere(self._ranks.team, bool(found))

    def _new_agent(self, x0: Tensor, first: list[Tensor], gamma: dict[str, float], path: Rate = 1.0) -> Agent:
        around = self._surroundings
        self._gamma, self.algorithm = gamma, around.algorithm.with_step_sizes(gamma)
        transport = self._team.transport(around.network, self.device)
        self._statistics.open(around.network, transport, len(self.algorithm.channels))
        channels = around.channels(self._flat, transport)
        walks = self._walk is not None
        rate = rate_schedule(self.algorithm)(0) if walks else self._rate(0)
        return Agent(self.algorithm, channels, self._team, x0, first, rate, path, walks, self.rows)

    def _old_gradient(self, closure: Callable[[], Any], draws: Draws, point: Tensor) -> Tensor:
        """The gradient on the same batch at the old model; model, gradients and generators end as they were."""
        assert self._agent is not None
        fresh = [p.grad for p in self._flat.parameters]
        for parameter in self._flat.parameters:
            parameter.grad = None
        self._flat.write(point)
        with replayed(draws, self.model):
            _with_gradients(closure)
        row = self._flat.gradients(1)
        self._flat.publish(self._agent.points[0])
        for parameter, gradient in zip(self._flat.parameters, fresh, strict=True):
            parameter.grad = gradient
        return row

    def _rate(self, step: int) -> Rate:
        """The step size: a number where all groups have the same, else one per coordinate."""
        return self._of_groups("lr", rates, step)

    def _shrink(self, step: int) -> Rate:
        """What weight decay multiplies the model with."""
        return self._of_groups("shrink", shrinks, step)

    def _of_groups(self, what: str, values: Callable[..., list[float]], step: int) -> Rate:
        try:
            return self._flat.per_group(what, values(self.algorithm, self.param_groups, step))
        except ValueError as error:
            raise ValueError(self._at(str(error))) from None

    def _decay_by(self, gradient: Tensor) -> None:
        """Add the decay to the gradient, for methods whose model must not be scaled.

        They step along the gradient itself, so the result is the same: x - lr * (gradient + weight_decay * x).
        """
        decays = [float(group["weight_decay"]) for group in self.param_groups]
        if any(decays) and self.algorithm.compares_models:
            x = self._flat.row() if self._agent is None else self._agent.points[0]
            combine(gradient, (1, gradient), (self._flat.per_group("decay", decays), x))

    def _check_model(self) -> None:
        if (thawed := self._flat.thawed()) is not None and self._agent is None:
            self._flat = self._flattened()
        elif thawed is not None:
            raise RuntimeError(
                self._at(f"{thawed} was frozen at the first step and is not any more; make a new optimizer to train it")
            )
        if self._agent is None:
            return
        changed = self._flat.changed(self._agent.points[0])
        if changed is not None:
            raise RuntimeError(
                self._at(
                    f"{changed} was changed since the last step (by consensus_, by loading or by hand), but the method continues "
                    "from its own rows; call restore_() to continue from them, or make a new optimizer to start again"
                )
            )

    def _mean_model(self, agent: Agent) -> Tensor:
        mean, found = measured(agent, self._team, self._ranks)
        self._measured = found | {"measured_at": agent.step}
        if self._ranks.mesh is not None:
            self._measured["agent_bytes"] = sum(self._ranks.each(self._bytes()))
        return mean

    @property
    def _surroundings(self) -> Surroundings:
        assert self._around is not None, "made with the optimizer"
        return self._around

    def _settings(self) -> dict[str, str]:
        walk = {} if self._walk is None else {"overlap": str(self._walk.overlap)}
        return self._surroundings.described(self._flat) | {"buffers": self.buffers} | walk

    def _row_type(self) -> torch.dtype:
        kinds = {p.dtype for group in self.param_groups for p in group["params"] if p.requires_grad}
        return torch.float64 if kinds == {torch.float64} else torch.float32

    def _bytes(self) -> int:
        return self._sent_before + self._team.bytes_sent

    def _at(self, text: str) -> str:
        """Agent and step first."""
        return f"agent {self.agent}, step {0 if self._agent is None else self._agent.step}: {text}"


@torch.enable_grad()
def _with_gradients(closure: Callable[[], Any]) -> Any:
    return closure()
