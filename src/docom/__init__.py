"""Decentralised optimisation with compressed communication.

n agents, each with its own data and loss f_i, are the nodes of a graph. They minimise the average of the f_i and exchange
compressed messages with their neighbours only. ``docom.simulate`` runs them in one process::

    run = docom.simulate(problem, docom.DoCoM(lr=0.05, gamma=0.3, beta=0.1), topology="ring", compressor="topk:0.1")

Names are loaded when they are first used, so that ``import docom`` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that holds it; a module of that name itself is written as None.
_WHERE: dict[str, str | None] = {
    **dict.fromkeys(
        [
            "DoCoM", "DSGD", "GNSD", "DeTAG", "GTHSGD", "ChocoSGD", "BEER", "CEDAS", "CDProxSGT", "L1", "MoTEF", "LEAD",
            "D2", "EXTRA", "QGDSGDm", "MomentumTracking", "AllReduceSGD", "AllReduceSTORM", "Algorithm", "Facts", "State",
            "ALGORITHMS", "step_size", "learning_rate", "consensus_step", "compressor_of",
        ],
        "docom.algorithms",
    ),
    **dict.fromkeys(
        ["TopK", "ChunkTopK", "Bins", "RandK", "Quantizer", "Sign", "LowRank", "Identity", "Compressor", "COMPRESSORS"],
        "docom.compressors",
    ),
    **dict.fromkeys(["EdgeLowRank", "MeanLowRank", "MeanTopK", "MeanTree", "Gossip"], "docom.channels"),
    **dict.fromkeys(["Conditions", "Churn", "Clock"], "docom.conditions"),
    "combine": "docom.numerics",
    "register": "docom.registry",
    "Preset": "docom.presets",
    "Setting": "docom.presets",
    "simulate": "docom.simulator",
    "Site": "docom.sites",
    "Run": "docom.records",
    "plot": "docom.records",
    "Network": "docom.weights",
    "network": "docom.weights",
    **dict.fromkeys(
        ["algorithms", "callbacks", "channels", "compressors", "data", "graphs", "inner", "optim", "plugins", "problems"]
    ),
    **dict.fromkeys(["schedules", "theory", "weights", "wire"]),
}  # fmt: skip

__all__ = [*sorted(_WHERE), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE and not (name[:1].isupper() and hasattr(import_module("docom.algorithms"), name)):
        raise AttributeError(f"docom has no {name!r}")
    where = _WHERE.get(name, "docom.algorithms")  # a new method needs its line there only
    found = import_module(f"docom.{name}") if where is None else getattr(import_module(where), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from docom import (
        algorithms,
        callbacks,
        channels,
        compressors,
        data,
        graphs,
        inner,
        optim,
        plugins,
        problems,
        schedules,
        theory,
        weights,
        wire,
    )
    from docom.algorithms import (
        ALGORITHMS,
        BEER,
        CEDAS,
        D2,
        DSGD,
        EXTRA,
        GNSD,
        GTHSGD,
        L1,
        LEAD,
        Algorithm,
        AllReduceSGD,
        AllReduceSTORM,
        CDProxSGT,
        ChocoSGD,
        DeTAG,
        DoCoM,
        Facts,
        MomentumTracking,
        MoTEF,
        QGDSGDm,
        State,
        compressor_of,
        consensus_step,
        learning_rate,
        step_size,
    )
    from docom.channels import EdgeLowRank, Gossip, MeanLowRank, MeanTopK, MeanTree
    from docom.compressors import (
        COMPRESSORS,
        Bins,
        ChunkTopK,
        Compressor,
        Identity,
        LowRank,
        Quantizer,
        RandK,
        Sign,
        TopK,
    )
    from docom.conditions import Churn, Clock, Conditions
    from docom.numerics import combine
    from docom.presets import Preset, Setting
    from docom.records import Run, plot
    from docom.registry import register
    from docom.simulator import simulate
    from docom.sites import Site
    from docom.weights import Network, network
