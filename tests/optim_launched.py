"""An optimizer per process, however they were started: ``mpirun -n 2 python optim_launched.py OUT BACKEND``.

Agent 0 writes to OUT which agents there were, what moved their messages, and digests of the parameters and of their average.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import docom
from docom.optim import Decentralized
from docom.optim.parameters import digest
from optim_agents import batch, closure, network, row

if __name__ == "__main__":
    torch.set_num_threads(1)
    out, backend = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    model = network(seed=5)
    opt = Decentralized(
        model.parameters(), docom.DoCoM(lr=0.1, gamma=0.3), compressor="topk:0.3", backend=backend, peer_timeout=60
    )
    for step in range(4):
        opt.step(closure(opt, model, batch(opt.agent, step)))
    own = digest(row(model))
    opt.consensus_()
    found = {
        "agents": opt.agents,
        "backend": opt._team.backend,
        "rows": opt._team.words(own),
        "mean": digest(row(model)),
    }
    if opt.agent == 0:
        out.write_text(json.dumps(found))
