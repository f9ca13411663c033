"""What `docom init` does: a first configuration, with every setting explained."""

from __future__ import annotations

from pathlib import Path

from docom.cli.commands import say

EXAMPLE = """\
# A run of docom: `docom run {name}`. What is left out has the value shown, unless the comment says otherwise.
# A setting on the command line (`docom run {name} --steps 2000 --gamma 0.3`) replaces the one here and leaves the others.

algorithm: docom         # the method; `docom list` names all of them
hyper:                   # its step sizes and settings (docs: Methods). A number, or a schedule such as steps:0.01,at=4000/8000
  lr: 0.01               # needed: the step size
  gamma: auto            # the consensus step; auto measures one that this network and compressor bear
  beta: 0.1              # the weight of the fresh gradient
compressor: topk:0.1     # of messages: topk:0.1, quantize:4, sign, lowrank:2, ...; none if left out

problem:                 # what is solved: a name and its options
  name: least-squares    # or leaf-synthetic, mnist, femnist, logistic, ...
  samples: 20            # per agent
  features: 10
agents: 8                # if left out, as many as the problem has by itself

topology: ring           # who is whose neighbour: ring, torus, erdos-renyi:0.3, ...
weights: null            # of neighbours: uniform, metropolis, lazy, max-degree; null: uniform if all degrees are equal

steps: 1000
batch_size: 4            # samples per agent and step; null (if left out): all of an agent's data
seed: 0                  # of everything random
dtype: float32           # or float64
device: cpu              # or cuda, cuda:1
exact: false             # true: gradients agent by agent, for the same bits in processes
threads: null            # of the CPU; null: as many as torch takes

inner: null              # an optimizer for local steps between messages: adamw:lr=1e-3 or {{name: sgd, lr: "steps:0.1,at=9000"}}.
                         # The lr above is then the outer step size, 1 the plain one, and steps counts rounds of messages
local_steps: null        # inner steps between two messages; a list for one number per agent; null: 1
overlap: 0               # inner steps that are taken while messages travel

eval_every: 100          # steps between records
eval_samples: null       # evaluate on so many samples, at the end on all; null: always on all
grad_every: null         # steps between gradient norms, the costly part of an evaluation; null: in every record
until: null              # stop early, for example "loss_worst<=0.05"
diagnose: false          # record the potential of the proof, invariants and observed contraction, and warn of divergence
stop_on_divergence: false

conditions: {{}}           # what happens to messages, links and agents, all simulated; for example
                         # {{loss: 0.1, delay: 3, churn: "leave@100:3,join@300:3", clock: "step=0.2,latency=50ms,up=10mbit"}}

label: null              # the name in tables and figures; null: from the method and its compressor
preset: null             # the experiment that the settings come from, if any; only recorded
plugins: {{}}              # Python files with methods and problems of your own, such as [mine.py]

compare:                 # for `docom compare {name}`; `docom run` does not read it
  seeds: 2               # 0 and 1, or a list such as [3, 7]
  runs:                  # each takes the settings above and replaces those it names
    - {{}}
    - compressor: quantize:4
    - algorithm: dsgd    # of the step sizes above it takes those that it has
      compressor: none
    - label: DoCoM, beta 0.5
      hyper: {{beta: 0.5}}
"""


def init(path: Path) -> None:
    """See `docom.cli.app.init`."""
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"a configuration is a file such as mine.yaml, got {path}")
    try:
        with path.open("x") as file:
            file.write(EXAMPLE.format(name=path))
    except FileExistsError:
        raise FileExistsError(f"{path} is there already; choose another name, or remove it first") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no folder {path.parent} for {path.name}; make it first") from None
    say(f"{path} is written; try: docom run {path}, or docom compare {path}")
