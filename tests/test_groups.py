"""Agents of several ranks: FSDP2 or DDP inside an agent, docom between agents.

Gangs of four processes run everything (`group_agents.py`); the tests look at what they left.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import docom
import group_agents as gang
from docom import rng, wire
from docom.checkpoint import CheckpointError, seal
from docom.compressors import parse
from docom.layout import Layout
from docom.optim import Decentralized
from docom.optim import ranks as ranks_of_agents
from docom.optim.agent_files import AgentFiles, write
from docom.optim.parameters import Flat
from docom.optim.ranks import Ranks, buckets, share, span
from docom.optim.resharding import ABOUT, Division, parsed
from launching import finish, torchrun

Results = list[dict[str, Any]]
WHOLE = ("docom", "walk", "overlap", "corrected")  # whose messages are whole vectors, the same however they are divided


def left_by(what: str, folder: Path) -> Results:
    """What the processes of a gang saw, by rank: agent 0 is ranks 0 and 1."""
    done = finish(torchrun(4, str(Path(gang.__file__)), str(folder), what), timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quick")


@pytest.fixture(scope="module")
def quick(folder: Path) -> Results:
    return left_by("quick", folder)


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return left_by("methods", tmp_path_factory.mktemp("methods"))


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return left_by("resumed", tmp_path_factory.mktemp("resumed"))


def each(methods: tuple[str, ...], quick: tuple[str, ...], gang: str = "methods") -> Any:
    """The methods that the quick gang has run, and as slow tests those of another one."""
    found = [
        pytest.param("quick", method) if method in quick else pytest.param(gang, method, marks=pytest.mark.slow)
        for method in methods
    ]
    return pytest.mark.parametrize(("which", "method"), found)


def agents(results: Results, name: str) -> Tensor:
    """The models of both agents, which their two ranks hold alike."""
    for rank in (0, 2):
        assert torch.equal(results[rank][name], results[rank + 1][name])
    return torch.stack([results[0][name], results[2][name]])


def of_one(results: Results, name: str) -> Tensor:
    """Those of the agents that are one process."""
    return torch.stack([results[0][name], results[1][name]])


@each(gang.ALONE, gang.ALONE[:1])
def test_one_rank_per_agent_has_the_bits_of_agents_without_a_mesh(
    which: str, method: str, request: pytest.FixtureRequest
) -> None:
    for result in request.getfixturevalue(which):
        assert torch.equal(result[f"{method} with"], result[f"{method} without"])
        assert torch.equal(result[f"{method} sharded"], result[f"{method} without"])


@each(tuple(gang.METHODS), gang.QUICK)
def test_two_ranks_beside_one(which: str, method: str, request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(which)
    sharded, replicated, one = (
        agents(results, f"{method} fsdp"), agents(results, f"{method} ddp"), of_one(results, f"{method} one")
    )  # fmt: skip
    assert torch.equal(sharded, replicated) or method == "clipped", "the same rank keeps the same numbers"
    assert not torch.equal(sharded[0], sharded[1])
    assert torch.equal(sharded, one) == (method in WHOLE)
    if method == "clipped":  # the same numbers but for the rounding of a norm
        torch.testing.assert_close(sharded, one, rtol=1e-5, atol=1e-6)
    start = gang.start()
    # A compressor chooses within a shard instead of the model: other numbers, but no other course.
    assert torch.linalg.vector_norm(sharded - one) < 0.5 * torch.linalg.vector_norm(one - start)


@each(tuple(gang.METHODS), gang.QUICK)
def test_measures_and_the_average(which: str, method: str, request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(which)
    for inside in ("fsdp", "ddp"):
        models, mean = agents(results, f"{method} {inside}"), agents(results, f"{method} {inside} mean")
        assert torch.equal(mean[0], mean[1])
        assert torch.equal(agents(results, f"{method} {inside} restored"), models)
        if "every" not in gang.METHODS[method][1]:  # the average of local steps is that of the rounds
            torch.testing.assert_close(mean[0], models.mean(0), rtol=1e-6, atol=1e-7)
            distance = float(torch.linalg.vector_norm((models - models.mean(0)).double(), dim=1).sum())
            for result in results:
                found = result[f"{method} {inside} stats"]["consensus_distance"]
                assert found == pytest.approx(distance, rel=1e-4)


@each(("docom", "quantized", "choco", "low rank"), gang.QUICK)
def test_bytes_of_a_rank_are_those_of_its_shard(which: str, method: str, request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(which)
    algorithm, settings = gang.METHODS[method]
    rounds = (2 * gang.STEPS - 1) if len(algorithm.channels) == 2 else gang.STEPS
    numbers = 0
    for rank, result in enumerate(results):
        layout = Layout(tuple(tuple(shape) for shape in result[f"{method} fsdp shapes"]))
        size = parse(settings.get("compressor", "none")).bind(layout, torch.float32).num_bytes
        stats = result[f"{method} fsdp stats"]
        assert stats["bytes"] == rounds * (size + wire.HEADER_SIZE)
        agent = [results[other][f"{method} fsdp stats"]["bytes"] for other in (rank // 2 * 2, rank // 2 * 2 + 1)]
        assert stats["agent_bytes"] == sum(agent)
        numbers += layout.dimension
    assert numbers == 2 * results[0][f"{method} fsdp"].numel(), "every number has one rank of an agent"


@each(gang.RESUMED, gang.RESUMED[:1], "resumed")
def test_continues_divided_in_any_way(which: str, method: str, request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(which)
    for inside in ("fsdp", "ddp"):
        name = f"{method} {inside}"
        on = agents(results, f"{name} on")
        for kind in ("fsdp", "ddp"):
            assert torch.equal(agents(results, f"{name} then {kind}"), on)
            for result in results:
                assert result[f"{name} then {kind} stats"] == result[f"{name} on stats"]
        assert torch.equal(of_one(results, f"{name} loaded"), agents(results, f"{name} saved"))
        fewer = of_one(results, f"{name} fewer")
        assert torch.equal(fewer, on) == (method in WHOLE)
        assert torch.isfinite(fewer).all()
        for agent, result in enumerate(results[:2]):
            assert result[f"{name} fewer stats"]["step"] == results[2 * agent][f"{name} on stats"]["step"]
    more = agents(results, f"{method} more")
    assert torch.equal(more, agents(results, f"{method} fsdp on")) == (method in WHOLE)
    assert torch.isfinite(more).all()


@pytest.mark.slow
def test_rows_in_the_host_s_memory_are_those_of_the_shard(quick: Results, methods: Results) -> None:
    for inside in ("fsdp", "ddp"):
        assert torch.equal(agents(methods, f"host rows {inside}"), agents(quick, f"sparse walk {inside}"))


@pytest.mark.slow
def test_a_state_through_the_user_s_own_calls_of_dcp(resumed: Results) -> None:
    assert [result["by dcp"] for result in resumed] == [True] * 4
    assert torch.equal(agents(resumed, "by dcp again"), agents(resumed, "by dcp on"))


def test_uneven_and_empty_shards_and_parameters_left_whole(quick: Results) -> None:
    sharded, replicated = agents(quick, "uneven fsdp"), agents(quick, "uneven whole")
    assert torch.equal(sharded, replicated)
    assert torch.equal(sharded, of_one(quick, "uneven one"))
    assert torch.equal(sharded, agents(quick, "uneven columns"))
    assert not torch.equal(sharded[0], sharded[1])
    numbers = [result["uneven fsdp numbers"] for result in quick]
    assert numbers == [2 * 4 + 2 + 3 * 3 + 3 + 5 + 1 + 1, 4 + 1 + 2 * 3 + 2] * 2
    assert quick[0]["uneven one numbers"] == sum(numbers[:2]) == sharded.shape[1]


def test_what_the_ranks_of_an_agent_decide_together(quick: Results) -> None:
    assert [result["skipped"] for result in quick] == [1] * 4, "one overflow is everybody's skipped step"
    assert [result["skipped inside"] for result in quick] == [False, False, True, True]
    for rank in (0, 2):
        assert quick[rank]["by time"] == quick[rank + 1]["by time"]


def test_files_are_safetensors_and_json(quick: Results, folder: Path) -> None:
    place = folder / f"{gang.RESUMED[0]} fsdp" / "agent-1"
    names = sorted(path.name for path in place.iterdir())
    assert names == ["manifest.json", "rank-0-of-2.safetensors", "rank-1-of-2.safetensors"]
    assert json.loads((place / "manifest.json").read_text())["format"] == 1
    sizes = [path.stat().st_size for path in place.glob("*.safetensors")]
    assert max(sizes) < 1.2 * min(sizes), "each rank writes its part"
    assert not list(folder.glob("**/*.tmp"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no agents", "mesh has the dimensions 'replicas', 'shards'; it needs 'agents'"),
        ("no mesh", "is a DTensor, so that an agent is several processes: give mesh="),
        ("other mesh", "is divided over 4 processes, and an agent of mesh= has 2 ranks"),
        ("topology", "2"),
        ("shapes", "rank 1 differs in parameters"),
        ("models", "rank 1 differs in what all ranks hold of the model"),
        ("group", "with mesh= the mesh says which processes are agents; leave out group"),
        ("kind", "mesh is a torch.distributed DeviceMesh"),
        ("small", "rank 1 of 2 would keep no number of the model"),
        ("damaged", "rank-1-of-2.safetensors is damaged (checksum)"),
        ("other method", "the state is of another run (algorithm: "),
        ("other model", "the state does not fit these parameters"),
        ("absent", "manifest.json"),
        ("save", "save and load are for agents with ranks"),
    ],
)
def test_refused_in_one_line(quick: Results, what: str, said: str) -> None:
    for result in quick:
        assert said in result[f"refused {what}"]
        assert "\n" not in result[f"refused {what}"]


@pytest.mark.slow
def test_the_example_stops_and_continues_with_fewer_ranks(tmp_path: Path) -> None:
    example = str(gang.PATH)
    for world, options in ((4, ["--save", str(tmp_path)]), (2, ["--ranks", "1", "--resume", str(tmp_path)])):
        done = finish(torchrun(world, example, "--steps", "12", *options))
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"2 agents of {world // 2} rank(s): the average model" in done.stdout
    assert "'inner_steps': 24" in done.stdout


def test_parts_are_those_of_torch() -> None:
    for side in range(1, 12):
        for count in range(1, 6):
            rows = torch.arange(2.0 * side).reshape(side, 2)
            parts = [share(rows, position, count) for position in range(count)]
            assert torch.equal(torch.cat(parts), rows)
            expected = [*rows.chunk(count), *[rows[:0]] * count][:count]
            assert all(torch.equal(part, chunk) for part, chunk in zip(parts, expected, strict=True))
            assert [span(side, position, count)[1] for position in range(count)][-1] == side
    scalar = torch.tensor(3.0)
    assert [share(scalar, position, 2).tolist() for position in range(2)] == [[3.0], []]


def test_files_that_no_agent_has_written_are_refused(tmp_path: Path) -> None:
    whole, half = torch.randn(4, 2), torch.randn(2, 2)
    place = tmp_path / "agent-0"
    write(place, {"x": whole}, Ranks())
    files = AgentFiles(place, Ranks())
    assert files.sizes == {"x": ((4, 2), torch.float32)}
    assert torch.equal(files.read({"x": torch.zeros(4, 2)})["x"], whole)

    name = "rank-0-of-1.safetensors"
    late = json.dumps({"x": {"saved_offsets": [2, 0]}})
    for data, said in {
        b"no tensors at all": "header",
        to_bytes({"x": half}, {"DCP_SHARDING_INFO": late}): "x is not complete in the files",
        to_bytes({"y": half}, {"DCP_SHARDING_INFO": late}): "y",
        to_bytes({"x": half}, {"DCP_SHARDING_INFO": "[1]"}): "indices",
    }.items():
        (place / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=r"bytes instead of|damaged"):
            AgentFiles(place, Ranks())
        sealed(place, [name])
        with pytest.raises(CheckpointError, match=said):
            AgentFiles(place, Ranks())
    sealed(place, [])
    with pytest.raises(CheckpointError, match="does not hold the files"):
        AgentFiles(place, Ranks())
    (place / "manifest.json").write_text("[]")
    with pytest.raises(CheckpointError, match="another format"):
        AgentFiles(place, Ranks())


def sealed(folder: Path, names: list[str]) -> None:
    """A manifest that fits these files."""
    files = [
        {"file": name, "bytes": len(data), "sha256": sha256(data).hexdigest()}
        for name in names
        for data in [(folder / name).read_bytes()]
    ]
    manifest = {"format": 1, "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"sha256": seal(manifest)}))


def test_large_models_are_made_whole_in_several_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_of_agents, "TOGETHER", 10)
    sizes = [4, 5, 2, 30, 1, 9, 1]
    found = [[len(t) for t in some] for some in buckets(torch.zeros(size) for size in sizes)]
    assert found == [[4, 5], [2], [30], [1, 9], [1]]
    assert list(buckets([])) == []


def test_ranks_draw_independently_and_the_first_as_an_agent_alone() -> None:
    ranks = [Ranks() for _ in range(3)]
    for position, rank in enumerate(ranks):
        rank.position, rank.count = position, 3
    seeds = [rank.seed(7) for rank in ranks]
    assert seeds[0] == 7
    draws = [rng.words(rng.Key(seed, rng.CHANNEL), torch.tensor([1]), 4, 64) for seed in seeds]
    assert len({tuple(draw[0].tolist()) for draw in draws}) == 3
    assert rng.Key(ranks[2].seed(2**63 - 1), 0).seed < 2**63


def test_a_state_as_tensors_and_back() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    groups = [{"params": list(model.parameters())}]
    flat = Flat(groups, torch.float32)
    division = Division(groups, flat, Ranks())
    row, several = torch.randn(1, flat.layout.dimension), torch.randn(1, 2, flat.layout.dimension)
    state = {
        "docom": {"x": row, "tables": several, "basis": torch.randn(1, 4, 2), "count": torch.tensor(3), "none": None,
                  "walk": {"optimizer": {"state": {0: {"step": torch.tensor(2.0), "exp_avg": torch.randn(2, 3)}}}}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1], "name": "a"}],
    }  # fmt: skip
    tensors = division.to_tensors(state)
    assert all(isinstance(tensor, Tensor) and tensor.dim() for tensor in tensors.values())
    expected = division.expected(parsed(tensors[ABOUT]), {k: (tuple(t.shape), t.dtype) for k, t in tensors.items()})
    assert {k: (t.shape, t.dtype) for k, t in expected.items()} == {
        k: (t.shape, t.dtype) for k, t in tensors.items() if k != ABOUT
    }
    again = division.from_tensors(tensors)
    assert again["param_groups"] == state["param_groups"]
    assert again["docom"].pop("none") is state["docom"].pop("none") is None
    torch.testing.assert_close(again["docom"], state["docom"], rtol=0, atol=0)
    with pytest.raises(TypeError, match="neither tensor, number nor text"):
        division.to_tensors({"hook": print})
    with pytest.raises(ValueError, match="another format"):
        parsed(torch.tensor(list(b"[]"), dtype=torch.uint8))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_one_agent_of_one_rank(kind: str, tmp_path: Path) -> None:
    if kind == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh(kind, (1, 1), mesh_dim_names=gang.NAMES)
        found = [trained_alone(mesh, sharded, tmp_path) for sharded in (False, True)]
    finally:
        dist.destroy_process_group()
    for before, after in found:
        assert torch.equal(before, found[0][0])
        assert torch.equal(after, found[0][0])


def trained_alone(mesh: DeviceMesh, sharded: bool, folder: Path) -> tuple[Tensor, Tensor]:
    """A model after some steps; and another one to which the state of the unsharded one was given."""
    models = []
    for new in (False, True):
        torch.manual_seed(int(new))
        model = nn.Linear(64, 32).to(mesh.device_type)
        if sharded:
            fully_shard(model, mesh=mesh["ranks"])
        inner = torch.optim.AdamW(model.parameters(), lr=0.1)
        opt = Decentralized(
            model.parameters(),
            docom.ChocoSGD(lr=1.0, gamma=0.5),
            compressor="topk:0.1",
            mesh=mesh,
            inner=inner,
            every=2,
        )
        if new:
            opt.load(folder / "False")
        for _ in range(0 if new else 5):
            opt.zero_grad()
            model(torch.ones(3, 64, device=mesh.device_type)).square().sum().backward()
            opt.step()
        assert opt._agent is not None
        assert all(row.device.type == mesh.device_type for row in opt._agent.state.rows().values())
        assert all(row.device.type == mesh.device_type for row in opt._agent.channels.rows().values())
        if not new:
            opt.save(folder / f"{sharded}")
        models.append(gang.row_of(model))
    return models[0], models[1]
