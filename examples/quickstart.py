"""DoCoM on eight agents in a ring with 10% of the entries sent: the README's example."""

import torch

import docom

draw = torch.Generator().manual_seed(0)
A, b = torch.randn(8, 50, 20, generator=draw), torch.randn(8, 50, generator=draw)  # agent i: |A_i x - b_i|^2 / (2 m)
run = docom.simulate(
    docom.problems.LeastSquares(A, b),
    docom.DoCoM(lr=0.05, gamma="auto", beta=0.1),
    topology="ring",
    compressor="topk:0.1",
    steps=500,
    batch_size=5,
)
last = run.records[-1]
print(
    f"worst loss {last['loss_worst']:.4f}, consensus gap {last['consensus_gap']:.4f}, {last['wire_bytes']:,} bytes sent"
)
run.plot("bits").savefig("quickstart.png")
