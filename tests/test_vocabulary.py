"""One word for one thing: turns of phrase that a reader has to look up, and names that were replaced, stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNITS = (
    "agent|step|round|edge|coordinate|neighbour|process|row|sample|link|iteration|message|tensor|host|character|entry|run|trial|"
    "seed|batch"
)
COUNTED = (
    "vectors|bytes|bits|gradients?|messages|numbers?|rows|samples|ms|us|ns|milliseconds|time|kB|classes|pair|words"
)
VERBS = "has|holds|keeps|draws|may|sends|needs|can|cannot|gets|takes"

# What is avoided, and what is said instead.
BANNED = {
    rf"\b({COUNTED}) an? ({UNITS})\b(?!'| ({VERBS})\b)": "per agent, per step",
    r"\bnought\b": "zero",
    r"\b(whoever|whosoever|whomever)\b": "a process that ..., every client that ...",
    r"\bfor who (looks|wants|holds)\b": "for a process that ...",
    r"\b(henceforth|thereafter|lest|alas|amiss|betimes|whence|thence)\b": "then, after it",
    r"\banew\b": "again",
    r"\bforgo(es)?\b": "turns off, does without",
    r"\bforetell|foretold\b": "predict",
    r"\bfor ever\b": "always, without end, forever",
    r"\b(puts?|putting) up (a |its )?notes?\b": "writes a note",
    r"\b(spell it|spelt) as\b": "write it as",
    r"\bis to be (a|an|one|in|of)\b": "must be",
    r"\b[Ww]hatever\b": "for any, for each",
    r"\bby turns\b": "alternately",
    r"\b(numbers|they|steps) ran away\b": "diverged, gave NaN or infinity",
    r"\b(is|are) simply there\b": "need no sending",
    r"\bpost office\b": "sends and receives buffers",
    r"\b(stays?|stayed) silent\b": "sent nothing, the longest time to wait for",
    r"\b(what|that) (had to|must) come\b": "what is expected",
    r"\b([Tt]ake|takes) back what\b": "restore what",
    r"\b(holds?|held) up everybody\b": "delays all agents",
    r"\b(come|comes|came) home\b": "return",
    r"\b(put|puts|putting) to the test\b": "test",
    r"\bsoonest\b": "fastest",
    r"\b(go|goes|going) on where it\b": "continues where it",
    r"\b(agreed|acted) upon\b": "agreed",
    r"\b[Ww]ho (needs|wants|asks for) (a|an|the|to)\b": "a process that needs, to measure",
    r"\b(priced as)\b": "counted as, computed as",
    r"\bnot alike\b": "different",
    r"\b(stamp|place|header)\.step\b": "stamp.round, place.number, header.number",
    r"\bimport (\w+, )*Step\b": "Scheduled",
    r"\b(open_links|RecordedStep|recordable|ExactChannel|averaging_rounds|NetworkProblem)\b": "see the glossary",
    r"\btraining\.(links|advance|recorded)\b": "channels, take_step, captured",
}


def sources() -> list[Path]:
    """Code and prose that users and authors of methods read."""
    places = (
        "src/**/*.py",
        "docs/**/*.md",
        "docs/*.py",
        "examples/*.py",
        "benchmarks/**/*.py",
        "README.md",
        "CONTRIBUTING.md",
    )
    return sorted(path for place in places for path in ROOT.glob(place))


@pytest.mark.parametrize("pattern", BANNED)
def test_turns_of_phrase_stay_out(pattern: str) -> None:
    found = []
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{name}:{number}: {line.strip()[:120]}")
    assert not found, f"say instead: {BANNED[pattern]}\n" + "\n".join(found)


@pytest.mark.parametrize(
    "sentence",
    [
        "It sends 2 vectors a step.",
        "10 bytes an agent",
        "filled nought times",
        "whoever holds it",
        "training.links",
        "stamp.step",
    ],
)
def test_the_patterns_find_what_they_are_for(sentence: str) -> None:
    assert any(re.search(pattern, sentence) for pattern in BANNED)


@pytest.mark.parametrize("sentence", ["the numbers an agent holds", "2 vectors per step", "the messages of a step"])
def test_plain_sentences_pass(sentence: str) -> None:
    assert not any(re.search(pattern, sentence) for pattern in BANNED)
