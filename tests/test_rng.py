"""Random numbers as a function of their coordinates: known answers, two equal versions, uniformity."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from docom import rng
from docom.rng import Key, compiled, plain

SETTLED = settings(deadline=None, max_examples=60)  # the first call compiles
SIGMAS = 5  # draws are fixed by their keys, so these bounds hold always or never

WORD = st.integers(0, 2**32 - 1)
KEYS = st.builds(Key, st.integers(0, 2**63 - 1), WORD)
AGENTS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6)

# Counter, key and result, as published with Random123.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def hexadecimal(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python's integers, from the paper of Salmon et al."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(c[0] * 0xD2511F53, 2**32)
        high1, low1 = divmod(c[2] * 0xCD9E8D57, 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def agents_of(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


# --- the generator ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    c, k, expected = hexadecimal(counter), hexadecimal(key), hexadecimal(answer)
    tensors = tuple(torch.tensor([word]) for word in c)
    assert philox(c, k) == expected
    assert [int(lane) for lane in plain.philox(tensors, (k[0], k[1]))] == expected
    lanes, words = np.empty((4, compiled.BLOCKS), np.uint32), np.empty(4, np.uint32)
    compiled.philox_words(*map(np.uint32, c), compiled.round_keys(*map(np.uint32, k)), lanes, words)
    assert words.tolist() == expected


def test_words_of_the_zero_key_are_the_published_ones() -> None:
    assert rng.words(Key(0, 0), agents_of([0]), 0, 4).tolist() == [hexadecimal(KNOWN_ANSWERS[0][2])]


@SETTLED
@given(KEYS, AGENTS, WORD, st.integers(1, 40))
def test_a_word_is_philox_at_its_coordinates(key: Key, agents: list[int], step: int, count: int) -> None:
    drawn = rng.words(key, agents_of(agents), step, count)
    assert drawn.shape == (len(agents), count)
    assert drawn.dtype == torch.int64
    for row, agent in enumerate(agents):
        for index in {0, count // 2, count - 1}:
            counter = [index // 4, agent, step, key.seed >> 32]
            lanes = philox(counter, [key.seed % 2**32, key.stream])
            assert drawn[row, index] == lanes[index % 4]


@SETTLED
@given(KEYS, AGENTS, WORD, st.integers(0, 70))
def test_plain_and_compiled_words_are_equal(key: Key, agents: list[int], step: int, count: int) -> None:
    arguments = key.words, agents_of(agents), step, count
    assert torch.equal(plain.words(*arguments), compiled.words(*arguments))


COUNTED = """
import sys, torch
from docom import rng
first = rng.words(rng.Key(1, 2), torch.arange(3), 4, 50)
few = "numba" in sys.modules
same = all(torch.equal(rng.words(rng.Key(1, 2), torch.arange(3), 4, 50), first) for _ in range(50))
print(few, same, "numba" in sys.modules)
"""


def test_a_process_that_draws_little_loads_no_compiled_code() -> None:
    """One that draws again and again does, and draws the same."""
    done = subprocess.run([sys.executable, "-c", COUNTED], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "True"]


# --- no state -----------------------------------------------------------------------------------------------


@SETTLED
@given(KEYS, AGENTS, WORD, st.integers(1, 40), st.randoms(use_true_random=False))
def test_draws_do_not_depend_on_how_agents_are_grouped(key, agents, step, count, random) -> None:
    together = rng.words(key, agents_of(agents), step, count)
    order = list(range(len(agents)))
    random.shuffle(order)
    cut = random.randint(0, len(order))
    for group in (order[:cut], order[cut:]):
        apart = rng.words(key, agents_of([agents[row] for row in group]), step, count)
        assert torch.equal(apart, together[group])


@SETTLED
@given(KEYS, AGENTS, WORD, st.integers(1, 40), st.integers(1, 40))
def test_a_longer_draw_continues_a_shorter_one(key, agents, step, count, more) -> None:
    long = rng.words(key, agents_of(agents), step, count + more)
    assert torch.equal(rng.words(key, agents_of(agents), step, count), long[:, :count])


def test_torchs_generator_is_neither_read_nor_moved() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = rng.uniform(Key(3, 4), agents_of([0, 1]), 5, 6)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert torch.equal(rng.uniform(Key(3, 4), agents_of([0, 1]), 5, 6), first)


@SETTLED
@given(KEYS, WORD, WORD, st.integers(0, 62), st.integers(0, 31), st.integers(0, 31), st.integers(0, 31))
def test_every_bit_of_every_coordinate_matters(key, agent, step, seed_bit, stream_bit, agent_bit, step_bit) -> None:
    def four(key: Key, agent: int, step: int) -> list[list[int]]:
        return rng.words(key, agents_of([agent]), step, 4).tolist()

    base = four(key, agent, step)
    assert four(Key(key.seed ^ 1 << seed_bit, key.stream), agent, step) != base
    assert four(Key(key.seed, key.stream ^ 1 << stream_bit), agent, step) != base
    assert four(key, agent ^ 1 << agent_bit, step) != base
    assert four(key, agent, step ^ 1 << step_bit) != base


def test_seeds_reach_to_63_bits_and_no_further() -> None:
    largest = rng.words(Key(2**63 - 1, 0), agents_of([0]), 0, 4)
    expected = philox([0, 0, 0, 2**31 - 1], [2**32 - 1, 0])
    assert largest.tolist() == [expected]
    for seed in (-1, 2**63):
        with pytest.raises(ValueError, match=f"from 0 to 2\\^63 - 1, got {seed}"):
            Key(seed, 0)


def test_named_streams_are_distinct_and_below_those_of_channels() -> None:
    named = [number for name, number in vars(rng).items() if name.isupper() and name != "CHANNEL"]
    assert {rng.BATCH, rng.OUTPUT, rng.GAMMA, rng.BASIS, rng.START} <= set(named)
    assert len(set(named)) == len(named)
    assert max(named) < rng.CHANNEL


# --- distributions ------------------------------------------------------------------------------------------


@SETTLED
@given(KEYS, AGENTS, WORD, st.integers(1, 20))
def test_uniform_numbers_are_multiples_of_two_to_the_minus_24_in_every_type(key, agents, step, count) -> None:
    wide = rng.uniform(key, agents_of(agents), step, count)
    narrow = rng.uniform(key, agents_of(agents), step, count, torch.float32)
    assert wide.dtype == torch.float64
    assert narrow.dtype == torch.float32
    assert torch.equal(wide, narrow.to(torch.float64))
    assert torch.equal(wide * 2**24, (wide * 2**24).floor())
    assert bool(((wide >= 0) & (wide < 1)).all())


def test_uniform_moments() -> None:
    draws = rng.uniform(Key(11, 12), torch.arange(20), 13, 10_000).flatten().numpy()
    for power in range(1, 7):
        mean, second = 1 / (power + 1), 1 / (2 * power + 1)
        error = SIGMAS * np.sqrt((second - mean**2) / draws.size)
        assert abs((draws**power).mean() - mean) < error, f"moment {power}"


@pytest.mark.parametrize("neighbour", ["seed", "high seed", "stream", "agent", "step", "index"])
def test_neighbouring_draws_are_uncorrelated(neighbour: str) -> None:
    def draw(seed: int = 5, stream: int = 6, agent: int = 7, step: int = 8) -> np.ndarray:
        return rng.uniform(Key(seed, stream), agents_of([agent]), step, 100_001)[0].numpy() - 0.5

    changed = {
        "seed": draw(seed=6),
        "high seed": draw(seed=5 + 2**32),
        "stream": draw(stream=7),
        "agent": draw(agent=8),
        "step": draw(step=9),
        "index": np.roll(draw(), 1),
    }
    correlation = 12 * (draw() * changed[neighbour]).mean()
    assert abs(correlation) < SIGMAS / np.sqrt(100_000)


@SETTLED
@given(KEYS, st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=6), WORD, st.integers(1, 30))
def test_batch_indices_lie_below_each_agents_count(key, counts, step, size) -> None:
    agents = torch.arange(len(counts))
    drawn = rng.batch_indices(key, agents, step, torch.tensor(counts), size)
    assert drawn.shape == (len(counts), size)
    assert bool((drawn >= 0).all())
    assert bool((drawn < torch.tensor(counts).unsqueeze(1)).all())
    words = rng.words(key, agents, step, size)
    exact = [[word * count >> 32 for word in row] for row, count in zip(words.tolist(), counts, strict=True)]
    assert drawn.tolist() == exact


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_batch_indices_are_uniform(count: int) -> None:
    drawn = rng.batch_indices(Key(21, rng.BATCH), torch.arange(10), 22, torch.full((10,), count), 10_000)
    seen = np.bincount(drawn.flatten().numpy(), minlength=count)
    expected = drawn.numel() / count
    chi_square = ((seen - expected) ** 2 / expected).sum()
    freedom = count - 1
    assert seen.size == count
    assert chi_square <= freedom + SIGMAS * np.sqrt(2 * freedom)


def test_integers_are_uniform_below_their_bound() -> None:
    drawn = [rng.integer(Key(seed, rng.OUTPUT), 6) for seed in range(6000)]
    seen = np.bincount(drawn, minlength=6)
    assert seen.size == 6
    assert ((seen - 1000) ** 2 / 1000).sum() <= 5 + SIGMAS * np.sqrt(10)
    assert rng.integer(Key(1, 2), 1) == 0
    assert len({rng.integer(Key(1, 2), 10**6, step) for step in range(100)}) > 95


# --- compiled kernels between runs ------------------------------------------------------------------------

DRAW = (
    "import torch; from docom.rng import compiled; print(compiled.words((1, 2, 3), torch.arange(2), 4, 5).sum().item())"
)


def drawn(home: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(home)
    return subprocess.run([sys.executable, "-c", DRAW], env=environment, capture_output=True, text=True, check=True)


@pytest.mark.slow
def test_compiled_kernels_are_kept_in_a_folder_of_the_users_own(tmp_path: Path) -> None:
    """Numba unpickles them; nobody else may write there, and what others could have written is not read."""
    home = tmp_path / "docom-kernels"
    first = drawn(tmp_path)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    kept = sorted(home.rglob("*.nbi"))
    assert {path.name.partition("-")[0] for path in kept} >= {"compiled._fill"}
    assert first.stderr == ""
    for path in home.rglob("*.nb[ci]"):
        path.write_bytes(b"no pickle")
    home.chmod(0o770)
    open_to_others = drawn(tmp_path)
    assert open_to_others.stdout == first.stdout
    assert "docom-kernels is not used" in open_to_others.stderr
    assert all(path.read_bytes() == b"no pickle" for path in kept)


@pytest.mark.slow
def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "docom-kernels").symlink_to(tmp_path / "elsewhere")
    assert "docom-kernels is not used" in drawn(tmp_path).stderr
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.slow
def test_kernels_of_an_earlier_state_of_the_source_are_removed(tmp_path: Path) -> None:
    drawn(tmp_path)
    (folder,) = (tmp_path / "docom-kernels").iterdir()
    here, _, source = folder.name.partition("-")
    earlier, others = folder.with_name(f"{here}-0123456789ab"), folder.with_name(f"0123456789ab-{source}")
    folder.rename(earlier)
    others.mkdir()
    drawn(tmp_path)
    assert sorted((tmp_path / "docom-kernels").iterdir()) == sorted([folder, others])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("many", [1, 255, 257, 600])
def test_few_words_of_many_agents_are_those_of_the_plain_form(count: int, many: int) -> None:
    """Agents are worked on side by side, in blocks."""
    from docom.rng import compiled, plain

    key = Key(2**40 + 17, rng.LOSS).words
    agents = torch.arange(many) * 7_000_001
    assert torch.equal(compiled.words(key, agents, 123, count), plain.words(key, agents, 123, count))
