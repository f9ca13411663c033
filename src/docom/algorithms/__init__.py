"""Every method, one file each. A new one is a file and a line here: all other modules read what the class declares.

A user's method is added by the same `register`, from a script or a plugin.
"""

# ruff: noqa: I001  # the order of the methods is that of tables and legends
from __future__ import annotations

from docom.algorithms.base import (
    Algorithm as Algorithm,
    Facts as Facts,
    Hyper as Hyper,
    Channels as Channels,
    State as State,
)
from docom.algorithms.base import Scheduled as Scheduled
from docom.algorithms.declarations import StepSize as StepSize, compressor_of as compressor_of
from docom.algorithms.declarations import consensus_step as consensus_step, learning_rate as learning_rate
from docom.algorithms.declarations import step_size as step_size
from docom.algorithms.registry import ALGORITHMS as ALGORITHMS, ASYNCHRONOUS as ASYNCHRONOUS
from docom.algorithms.registry import find as find, register as register, title as title
from docom.algorithms.registry import require as require
from docom.algorithms.standing import AWAY as AWAY, CHANGING as CHANGING, CONDITIONS as CONDITIONS, DIRECTED as DIRECTED
from docom.algorithms.standing import LOSSY as LOSSY, MEMBERS as MEMBERS, Stands as Stands, survives as survives

from docom.algorithms.docom import DoCoM as DoCoM
from docom.algorithms.beer import BEER as BEER
from docom.algorithms.choco_sgd import ChocoSGD as ChocoSGD
from docom.algorithms.gt_hsgd import GTHSGD as GTHSGD
from docom.algorithms.gnsd import GNSD as GNSD
from docom.algorithms.detag import DeTAG as DeTAG
from docom.algorithms.dsgd import DSGD as DSGD
from docom.algorithms.motef import MoTEF as MoTEF
from docom.algorithms.cedas import CEDAS as CEDAS
from docom.algorithms.lead import LEAD as LEAD
from docom.algorithms.cdproxsgt import L1 as L1, CDProxSGT as CDProxSGT
from docom.algorithms.d2 import D2 as D2
from docom.algorithms.extra import EXTRA as EXTRA
from docom.algorithms.ticopd import TiCoPD as TiCoPD
from docom.algorithms.fspda import FSPDA as FSPDA
from docom.algorithms.push_pull import PushPull as PushPull
from docom.algorithms.push_diging import PushDIGing as PushDIGing
from docom.algorithms.sgp import SGP as SGP
from docom.algorithms.qg_dsgdm import QGDSGDm as QGDSGDm
from docom.algorithms.momentum_tracking import MomentumTracking as MomentumTracking
from docom.algorithms.centralised import AllReduceSGD as AllReduceSGD, AllReduceSTORM as AllReduceSTORM
from docom.algorithms.diloco import DiLoCo as DiLoCo
from docom.algorithms.streaming_diloco import StreamingDiLoCo as StreamingDiLoCo
from docom.algorithms.sparseloco import SparseLoCo as SparseLoCo
from docom.algorithms.noloco import NoLoCo as NoLoCo
from docom.algorithms.gasloc import GASLoC as GASLoC
from docom.algorithms.k_gt import KGT as KGT
from docom.algorithms.compressed_k_gt import CompressedKGT as CompressedKGT
from docom.algorithms.led import LED as LED
from docom.algorithms.proxskip import ProxSkip as ProxSkip
from docom.algorithms.asynchronous import AsynchronousMethod as AsynchronousMethod
from docom.algorithms.ad_psgd import ADPSGD as ADPSGD
from docom.algorithms.relaxed_admm import RelaxedADMM as RelaxedADMM
