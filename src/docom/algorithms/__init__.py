"""Every method, one file each. A new one is a file and a line in `ALGORITHMS` (or `register` from a user's script)."""

from __future__ import annotations

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, State, Step
from docom.algorithms.beer import BEER
from docom.algorithms.cdproxsgt import L1, CDProxSGT
from docom.algorithms.cedas import CEDAS
from docom.algorithms.centralised import AllReduceSGD, AllReduceSTORM
from docom.algorithms.choco_sgd import ChocoSGD
from docom.algorithms.d2 import D2
from docom.algorithms.detag import DeTAG
from docom.algorithms.docom import DoCoM
from docom.algorithms.dsgd import DSGD
from docom.algorithms.extra import EXTRA
from docom.algorithms.gnsd import GNSD
from docom.algorithms.gt_hsgd import GTHSGD
from docom.algorithms.lead import LEAD
from docom.algorithms.momentum_tracking import MomentumTracking
from docom.algorithms.motef import MoTEF
from docom.algorithms.qg_dsgdm import QGDSGDm
from docom.names import nearest

ALGORITHMS: dict[str, type[Algorithm]] = {
    "docom": DoCoM,
    "dsgd": DSGD,
    "gnsd": GNSD,
    "detag": DeTAG,
    "gt-hsgd": GTHSGD,
    "choco-sgd": ChocoSGD,
    "beer": BEER,
    "cedas": CEDAS,
    "cdproxsgt": CDProxSGT,
    "motef": MoTEF,
    "lead": LEAD,
    "d2": D2,
    "extra": EXTRA,
    "qg-dsgdm": QGDSGDm,
    "momentum-tracking": MomentumTracking,
    "allreduce-sgd": AllReduceSGD,
    "allreduce-storm": AllReduceSTORM,
}


def register(method: type[Algorithm]) -> type[Algorithm]:
    """Make a user's method known by its name; use as a decorator."""
    known = ALGORITHMS.get(method.name)
    if known is not None and known.__qualname__ != method.__qualname__:
        raise ValueError(f"the name {method.name!r} is taken by {known.__name__}; choose another")
    ALGORITHMS[method.name] = method
    return method


def find(name: str) -> type[Algorithm]:
    """The method of that name."""
    if name not in ALGORITHMS:
        raise nearest("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


__all__ = [
    "ALGORITHMS",
    "BEER",
    "CEDAS",
    "D2",
    "DSGD",
    "EXTRA",
    "GNSD",
    "GTHSGD",
    "L1",
    "LEAD",
    "Algorithm",
    "AllReduceSGD",
    "AllReduceSTORM",
    "CDProxSGT",
    "Channels",
    "ChocoSGD",
    "DeTAG",
    "DoCoM",
    "Facts",
    "Hyper",
    "MoTEF",
    "MomentumTracking",
    "QGDSGDm",
    "State",
    "Step",
    "find",
    "register",
]
