"""The description of a run: complete, in plain values, the same as a YAML file. Running it again gives the same numbers."""

from __future__ import annotations

import re
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from docom import inner as inners
from docom import plugins
from docom.algorithms import Algorithm, find
from docom.conditions import parse as parse_conditions
from docom.local_step_checks import OUTER, check_local_steps
from docom.names import nearest
from docom.problems import Problem, named

DTYPES = {"float32": torch.float32, "float64": torch.float64}
SCIENTIFIC = re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$")
DEVICES = ("cpu", "cuda")
OPTIONS = ("lr", "gamma", "beta")  # step sizes with an option of their own on the command line; others take --set
# Settings that are whole numbers, with their smallest allowed value; those below may also be left out.
LEAST = {"steps": 0, "eval_every": 1, "seed": 0, "agents": 1, "batch_size": 1, "eval_samples": 1, "grad_every": 1,
         "threads": 1}  # fmt: skip
MOST = {"steps": 10**12, "eval_every": 10**12, "seed": 2**63 - 1, "agents": 10**6, "batch_size": 10**7, "eval_samples": 10**12,
        "grad_every": 10**12, "threads": 1024}  # fmt: skip
TEXTS = ("weights", "until", "preset", "label")  # that may be left out
LONGEST_TEXT, LONGEST_FILE = 200, 2**20
PRESET = re.compile(r"^[A-Za-z0-9][\w.+-]*$")  # a name, which also becomes a part of a folder's
WHERE_GIVEN = (
    "inner",
    "local_steps",
    "overlap",
    "conditions",
    "plugins",
)  # in files; earlier runs have none
MAY_BE_LEFT_OUT = ("agents", "batch_size", "eval_samples", "grad_every", "threads")


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines the numbers of a run, and how often they are evaluated."""

    algorithm: str
    problem: dict[str, Any]
    agents: int | None = None
    hyper: dict[str, Any] = field(default_factory=dict)
    compressor: str = "none"
    topology: str = "ring"
    weights: str | None = None
    steps: int = 1000
    batch_size: int | None = None
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    exact: bool = False
    threads: int | None = None
    inner: str | dict[str, Any] | None = None
    local_steps: int | list[int] | None = None
    overlap: int = 0
    eval_every: int = 100
    eval_samples: int | None = None
    grad_every: int | None = None
    until: str | None = None
    diagnose: bool = False
    stop_on_divergence: bool = False
    conditions: dict[str, Any] = field(default_factory=dict)  # of `docom.Conditions`, as plain values
    preset: str | None = None
    label: str | None = None
    plugins: dict[str, str] = field(default_factory=dict)  # the files of `docom.plugins.given`, by digest

    def __post_init__(self) -> None:
        for name in ("algorithm", "compressor", "topology", "dtype", "device"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is a name, got {getattr(self, name)!r}")
        if self.dtype not in DTYPES:
            raise nearest("dtype", self.dtype, DTYPES)
        if self.device.partition(":")[0] not in DEVICES:
            raise nearest("device", self.device, DEVICES)
        if not isinstance(self.problem, dict) or "name" not in self.problem:
            raise ValueError(
                f"problem is a mapping with a name, such as {{name: leaf-synthetic}}, got {self.problem!r}"
            )
        named.check(str(self.problem["name"]), self.options)
        for name, least in LEAST.items():
            value = getattr(self, name)
            left_out = value is None and name in MAY_BE_LEFT_OUT
            if not left_out and (type(value) is not int or value < least):
                raise ValueError(f"{name} is a whole number >= {least}, got {value!r}")
            if not left_out and value > MOST[name]:
                raise ValueError(f"{name} is at most {MOST[name]:,}, got {value}")
        for name in TEXTS:
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and len(text) <= LONGEST_TEXT and text.isprintable()):
                raise ValueError(
                    f"{name} is a text in one line of at most {LONGEST_TEXT} characters, got {str(text)[:60]!r}"
                )
        if self.preset is not None and not PRESET.match(self.preset):
            raise ValueError(f"preset is a name of letters and digits, such as synthetic, got {self.preset!r}")
        for name in ("exact", "diagnose", "stop_on_divergence"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is true or false, got {getattr(self, name)!r}")
        if not isinstance(self.conditions, dict):
            raise ValueError(f"conditions is a mapping such as {{loss: 0.1, clock: step=0.2}}, got {self.conditions!r}")
        try:
            found = parse_conditions(self.conditions)
            if self.agents is not None:
                found.check(self.agents)
        except TypeError as error:
            raise ValueError(f"conditions: {error}") from None
        if found.churn is not None and (self.diagnose or self.stop_on_divergence):
            raise ValueError(
                "diagnose and stop_on_divergence follow the paper's proof, in which all agents take part; leave them out with "
                "churn"
            )
        algorithm = self.build_algorithm()
        check_local_steps(algorithm, self.build_inner(), self.local_steps, self.overlap, self.agents)
        if self.inner is not None and (self.diagnose or self.stop_on_divergence):
            raise ValueError(
                "diagnose and stop_on_divergence follow the paper's proof, which is about gradients; leave them out with inner"
            )

    def build_algorithm(self) -> Algorithm:
        """The method with its step sizes."""
        if not isinstance(self.hyper, dict):
            raise ValueError(f"hyper is a mapping such as {{lr: 0.01}}, got {self.hyper!r}")
        kind = find(self.algorithm)
        known = {f.name: f.default for f in fields(kind)}
        wrong = sorted(str(name) for name in self.hyper if name not in known)
        if wrong:
            close = get_close_matches(wrong[0], known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"{self.algorithm} has no {', '.join(wrong)}{hint}; it takes {', '.join(sorted(known))}")
        for name, value in self.hyper.items():
            if value is None and known[name] is not None:
                raise ValueError(f"{self.algorithm}: {name} is empty; give it a value, or leave it out")
        hyper = dict(self.hyper)
        if self.inner is not None and known.get(rate := kind.learning_rate_name() or "") is MISSING:
            hyper.setdefault(rate, OUTER)  # it is the outer step size then
        for name, default in known.items():
            if default is MISSING and name not in hyper:
                what = "a learning rate" if name == kind.learning_rate_name() else name
                option = f"--{name}" if name in OPTIONS else f"--set {name}=..."
                raise ValueError(f"{self.algorithm} needs {what}: give {option}, or {name} under hyper: in the file")
        return kind(**hyper)

    def build_inner(self) -> inners.Inner | None:
        """The inner optimizer of local steps, if there are any."""
        if not isinstance(self.inner, str | dict | None):
            raise ValueError(f"inner is a text such as {inners.EXAMPLE}, or a mapping with a name, got {self.inner!r}")
        return inners.parse(self.inner)

    @property
    def options(self) -> dict[str, Any]:
        """What the ``problem`` section says beside the name."""
        return {str(key): value for key, value in self.problem.items() if key != "name"}

    def build_problem(self, home: Path) -> Problem:
        """The problem, its data read from the data folder ``home`` where it needs any."""
        return named.build(str(self.problem["name"]), self.options, self.agents, home)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; plugins and local steps only where there are any."""
        return {key: value for key, value in asdict(self).items() if key not in WHERE_GIVEN or value}


def from_dict(values: dict[str, Any], folder: Path = Path()) -> RunConfig:
    """A configuration from plain values; unknown keys are refused by name. Files it names are relative to ``folder``."""
    if not isinstance(values, dict):
        raise ValueError(f"a configuration is a mapping of settings, got {type(values).__name__}")
    known = [f.name for f in fields(RunConfig)]
    for key in values:
        if key not in known:
            raise nearest("setting", str(key), known)
    for needed in ("algorithm", "problem"):
        if needed not in values:
            raise ValueError(f"the configuration lacks {needed!r}")
    return RunConfig(**values | {"plugins": plugins.resolve(values.get("plugins"), folder)})


def read(path: Path) -> RunConfig:
    """A configuration from a YAML file."""
    values = read_yaml(path)
    if isinstance(values, dict):
        values.pop("compare", None)  # of several runs; see `docom.cli.compare_file`
    return from_dict(values, path.parent)


def read_yaml(path: Path) -> Any:
    """The plain values of a YAML file."""
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise ValueError(f"a configuration has at most {LONGEST_FILE:,} bytes, this file {path.stat().st_size:,}")
        return parse_yaml(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}; `docom init {path}` writes one to start from") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder, and a YAML file is needed") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text (UTF-8), and a YAML file is needed") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_yaml(text: str) -> Any:
    """Plain values from YAML; other objects are never built."""
    import yaml

    try:
        # A few lines of aliases of aliases stand for more values than any memory holds.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("aliases (*name) are not read; write the value out where it is needed")
        return yaml.load(text, _with_scientific(yaml.SafeLoader))
    except RecursionError:
        raise ValueError("not valid YAML: too many levels, one inside the other") from None
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


def dump(config: RunConfig) -> str:
    """A configuration as YAML."""
    import yaml

    return str(yaml.dump(config.to_dict(), Dumper=_with_scientific(yaml.SafeDumper), sort_keys=False))


def _with_scientific(kind: Any) -> Any:
    """PyYAML's class, but with ``1e-4`` as a number, as in YAML 1.2; PyYAML itself reads a text."""
    extended: Any = type(kind.__name__, (kind,), {})
    extended.add_implicit_resolver("tag:yaml.org,2002:float", SCIENTIFIC, list("-+.0123456789"))
    return extended
