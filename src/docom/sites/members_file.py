"""The members' file, ``federation.yaml``: which sites train together, how they are known and reached, and what they run.

All sites have the same file; its digest is compared when two sites first meet. The order of the members is that of the agents.

>>> print(EXAMPLE)                                                                            # doctest: +ELLIPSIS
name: heart-study...
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docom.config import LONGEST_TEXT, RunConfig, read_yaml
from docom.names import nearest
from docom.sites.federation import Address, Federation, Member, Skipping
from docom.sites.keys import check_key, check_name
from docom.weights import Network, network

if TYPE_CHECKING:
    import networkx as nx

EXAMPLE = """\
name: heart-study              # of the run: with another name it is another run
members:                       # in the order of the agents
  - name: basel
    key: '...'                 # what `docom site keys basel` prints there
    address: basel.example.org:7070
  - name: bern                 # no address: a site that can only open connections itself
    key: '...'
  - name: chur
    key: '...'
    address: 198.51.100.7:7070
links:                         # or topology: ring
  - [bern, basel]              # the first one opens the connection, if the second one has an address
  - [bern, chur]
  - [basel, chur]
patience: 600                  # seconds until a silent neighbour is given up; with mode: skip, until the others go on without it
run:                           # for `docom site run`; settings of `docom run`
  preset: synthetic
  steps: 1000
"""

MOST_MEMBERS = 1000
MOST_SECONDS = 30 * 24 * 3600.0
KEYS = ("name", "members", "links", "topology", "weights", "patience", "heartbeat", "redial", "log", "run", "mode")
NEEDED = ("name", "members")
MEMBER_KEYS = ("name", "key", "address", "retired")
DEFAULTS: dict[str, float] = {"patience": 600.0, "heartbeat": 5.0, "redial": 30.0, "log": 512.0}
WAIT, SKIP = "wait", "skip"
MODES = (WAIT, SKIP)
SKIPPING_KEYS = ("version", "places", "behind", "gather", "clip")
MOST_NUMBER = 10**9
# Settings of a run that the members' file says itself, or that each site decides for itself.
NOT_HERE = {
    "agents": "it is the number of members",
    "topology": "write it beside run, or give links",
    "weights": "write it beside run",
    "device": "each site chooses its own: docom site run --device",
    "plugins": "sites do not run code that comes with a file",
    "diagnose": "diagnoses need all agents' state in one place; simulate the run with --diagnose",
    "stop_on_divergence": "it needs --diagnose; simulate the run",
}


def read(path: str | Path) -> Federation:
    """The members' file at a path."""
    try:
        values = read_yaml(Path(path))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no members' file {path}; `docom site init {path}` writes one to start from"
        ) from None
    try:
        return from_values(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def from_values(values: Any) -> Federation:
    """A federation from the plain values of a file."""
    if not isinstance(values, dict):
        raise ValueError(f"a members' file is a mapping of settings, got {type(values).__name__}")
    mode = values.get("mode", WAIT)
    if mode not in MODES:
        raise ValueError(
            f"mode is wait (all wait for all) or skip (the others go on without a silent site), got {mode!r}"
        )
    known = (*KEYS, *SKIPPING_KEYS) if mode == SKIP else KEYS
    for key in values:
        if key in SKIPPING_KEYS and mode != SKIP:
            raise ValueError(f"{key} belongs to mode: skip; leave it out, or write mode: skip")
        if key not in known:
            raise nearest("setting", str(key), known)
    for needed in NEEDED:
        if needed not in values:
            raise ValueError(f"the members' file lacks {needed!r}")
    members = _members(values["members"])
    run = _run(values.get("run"))
    seconds = {name: _seconds(name, values.get(name, default)) for name, default in DEFAULTS.items()}
    for name in ("patience", "redial"):
        if 2 * seconds["heartbeat"] > seconds[name]:
            raise ValueError(
                f"{name} must be at least twice heartbeat, got {seconds[name]:g} and {seconds['heartbeat']:g}"
            )
    skipping = _skipping(values, len(members)) if mode == SKIP else None
    if skipping is None and (gone := [member.name for member in members if member.retired]):
        raise ValueError(f"{gone[0]} is retired, which belongs to mode: skip; leave the member out of the file")
    graph, links = _graph(values, members, run, skipping)
    for i, j in links:
        if members[i].address is None and members[j].address is None:
            raise ValueError(
                f"{members[i].name} and {members[j].name} have a link, but neither has an address, so that none can open the "
                "connection; give one an address, or leave out the link"
            )
    name = check_name(values["name"])
    return Federation(
        name, members, links, graph, seconds["patience"], seconds["heartbeat"], seconds["redial"], seconds["log"], run,
        _content(name, members, links, graph, seconds, run) | _skipping_content(members, skipping), skipping,
    )  # fmt: skip


def _skipping(values: Mapping[str, Any], members: int) -> Skipping:
    """The settings of ``mode: skip``."""
    for key, least in (("version", 1), ("places", members), ("behind", 2)):
        given = values.get(key, least)
        if type(given) is not int or not least <= given <= MOST_NUMBER:
            raise ValueError(f"{key} is a whole number of at least {least}, got {given!r}")
    clip = values.get("clip")
    if clip is not None and (type(clip) not in (int, float) or not isfinite(clip) or clip < 1):
        raise ValueError(f"clip is a number >= 1, a multiple of the usual difference of two models, got {clip!r}")
    return Skipping(
        values.get("version", 1), values.get("places", members), values.get("behind", Skipping.behind),
        _seconds("gather", values.get("gather", Skipping.gather)), None if clip is None else float(clip),
    )  # fmt: skip


def _skipping_content(members: Sequence[Member], skipping: Skipping | None) -> dict[str, str]:
    if skipping is None:
        return {}
    found = {"mode": SKIP} | {key: f"{getattr(skipping, key)}" for key in SKIPPING_KEYS}
    return found | {f"retired {member.name}": "yes" for member in members if member.retired}


def _content(
    name: str, members: Sequence[Member], links: Sequence[tuple[int, int]], graph: Network, seconds: Mapping[str, float],
    run: Mapping[str, Any],
) -> dict[str, str]:  # fmt: skip
    """What is compared between sites, a line each."""
    found = {"name": name, "members": ", ".join(member.name for member in members)}
    for member in members:
        found[f"key of {member.name}"] = member.key
        found[f"address of {member.name}"] = "none" if member.address is None else str(member.address)
    found["links"] = ", ".join(f"{members[i].name} {members[j].name}" for i, j in sorted(links))
    found["weights"] = sha256(graph.matrix.tobytes()).hexdigest()[:16]
    found |= {key: f"{value:g}" for key, value in seconds.items()}
    return found | {f"run {key}": json.dumps(run[key], sort_keys=True, default=str) for key in sorted(run)}


def _members(given: Any) -> tuple[Member, ...]:
    if not isinstance(given, list) or not 2 <= len(given) <= MOST_MEMBERS:
        count = f", got {len(given)}" if isinstance(given, list) else ""
        raise ValueError(f"members is a list of 2 to {MOST_MEMBERS} sites, each with a name and a key{count}")
    found = tuple(_member(number, one) for number, one in enumerate(given, 1))
    for what, several in (("name", [m.name for m in found]), ("key", [m.key for m in found])):
        if twice := next((text for position, text in enumerate(several) if text in several[:position]), None):
            both = " and ".join(m.name for m in found if twice in (m.name, m.key))
            raise ValueError(f"members: the {what} {twice!r} occurs twice ({both}); each site has its own")
    addresses = [str(m.address) for m in found if m.address is not None]
    if twice := next((text for position, text in enumerate(addresses) if text in addresses[:position]), None):
        raise ValueError(f"members: the address {twice} occurs twice; each site has its own")
    return found


def _member(number: int, given: Any) -> Member:
    if not isinstance(given, dict):
        raise ValueError(f"member {number} is a mapping such as {{name: basel, key: '...'}}, got {str(given)[:60]!r}")
    for key in given:
        if key not in MEMBER_KEYS:
            raise nearest(f"setting of member {number}", str(key), MEMBER_KEYS)
    for needed in ("name", "key"):
        if needed not in given:
            raise ValueError(f"member {number} lacks {needed!r}")
    name = check_name(given["name"])
    address, retired = given.get("address"), given.get("retired", False)
    if not isinstance(retired, bool):
        raise ValueError(f"member {name}: retired is true or false, got {retired!r}")
    try:
        return Member(name, check_key(given["key"], name), None if address is None else Address.parse(address), retired)
    except ValueError as error:
        raise ValueError(f"member {name}: {error}") from None


def _seconds(name: str, given: Any) -> float:
    if type(given) not in (int, float) or not isfinite(given) or not 0 < given <= MOST_SECONDS:
        unit = "megabytes" if name == "log" else "seconds"
        raise ValueError(f"{name} is a number of {unit} > 0 and at most {MOST_SECONDS:.0f}, got {given!r}")
    return float(given)


def _graph(
    values: Mapping[str, Any], members: Sequence[Member], run: Mapping[str, Any], skipping: Skipping | None
) -> tuple[Network, tuple[tuple[int, int], ...]]:
    """The network of the sites and its links, in the order in which connections are opened."""
    weights, topology, links = values.get("weights"), values.get("topology"), values.get("links")
    if weights is not None and not isinstance(weights, str):
        raise ValueError(f"weights is a name such as metropolis, got {weights!r}")
    if (topology is None) == (links is None):
        raise ValueError("a members' file has either topology, such as ring, or links, such as [[basel, bern]]")
    if topology is not None and not (isinstance(topology, str) and len(topology) <= LONGEST_TEXT):
        raise ValueError(f"topology is a name such as ring, got {str(topology)[:60]!r}")
    seed = run.get("seed", 0)
    if skipping is not None:
        return _graph_of_present(topology, links, weights, members, skipping.places, seed)
    names = [member.name for member in members]
    if topology is not None:
        named = network(topology, len(names), weights, seed)
        return named, named.edges
    pairs = _links(links, names)
    return network(_as_graph(pairs, len(names)), len(names), weights, seed), pairs


def _graph_of_present(
    topology: str | None, links: Any, weights: str | None, members: Sequence[Member], places: int, seed: int
) -> tuple[Network, tuple[tuple[int, int], ...]]:
    """The same where members may be retired, and others come later.

    The network has all places; those of nobody hang on the first member, so that it is connected. No message goes to them.
    """
    present = [number for number, member in enumerate(members) if not member.retired]
    if len(present) < 2:
        raise ValueError("at least two members take part; a run with one site needs no members' file")
    if weights not in (None, "metropolis"):
        raise ValueError(f"with mode: skip weights are metropolis, since members may change, got {weights!r}")
    if topology is not None:
        edges = network(topology, len(present), None, seed).edges
        pairs = tuple((present[i], present[j]) for i, j in edges)
    else:
        pairs = _links(links, [member.name for member in members])
        for pair in pairs:
            if gone := [members[i].name for i in pair if members[i].retired]:
                raise ValueError(f"{gone[0]} is retired and has a link; leave the link out")
    nobody = tuple((present[0], place) for place in range(places) if place not in present)
    network(_as_graph([(present.index(i), present.index(j)) for i, j in pairs], len(present)), len(present))
    return network(_as_graph([*pairs, *nobody], places), places, "metropolis", seed), pairs


def _links(given: Any, names: list[str]) -> tuple[tuple[int, int], ...]:
    most = len(names) * (len(names) - 1) // 2
    if not isinstance(given, list) or not 1 <= len(given) <= most:
        raise ValueError(f"links is a list of 1 to {most} pairs of members, such as [[basel, bern]]")
    found: list[tuple[int, int]] = []
    for pair in given:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)):
            raise ValueError(f"a link is a pair of members such as [basel, bern], got {str(pair)[:60]}")
        for name in pair:
            if name not in names:
                raise nearest("member", name, names)
        i, j = names.index(pair[0]), names.index(pair[1])
        if i == j or (i, j) in found or (j, i) in found:
            raise ValueError(
                f"the link [{pair[0]}, {pair[1]}] " + ("joins a site to itself" if i == j else "occurs twice")
            )
        found.append((i, j))
    return tuple(found)


def _as_graph(pairs: Sequence[tuple[int, int]], n: int) -> nx.Graph[int]:
    import networkx as nx

    graph: nx.Graph[int] = nx.empty_graph(n)
    graph.add_edges_from(pairs)
    return graph


def _run(given: Any) -> dict[str, Any]:
    """The settings of a run; their values are checked when it is built."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ValueError(f"run is a mapping of settings such as {{preset: synthetic}}, got {str(given)[:60]!r}")
    known = [field.name for field in fields(RunConfig) if field.name not in NOT_HERE]
    for key in given:
        if key in NOT_HERE:
            raise ValueError(f"run: {key} does not belong here: {NOT_HERE[key]}")
        if key not in known:
            raise nearest("setting of run", str(key), known)
    seed = given.get("seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise ValueError(f"run: seed is a whole number >= 0, got {seed!r}")
    return {str(key): value for key, value in given.items()}
