"""Short names with arguments: what is split, what is kept, and the nearest name where one is misspelt."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docom import names
from docom.names import nearest, split_spec

words = st.text("abcdefghijklmnopqrstuvwxyz0123456789-._/", min_size=1, max_size=8)
spaces = st.sampled_from(["", " ", "  "])


@given(words, st.lists(words, max_size=4), st.dictionaries(words, words, max_size=3), st.data())
def test_a_spelling_is_split_into_what_it_was_made_of(name, positional, named, data) -> None:
    arguments = positional + [f"{key}{data.draw(spaces)}={data.draw(spaces)}{value}" for key, value in named.items()]
    joined = ",".join(data.draw(spaces) + argument + data.draw(spaces) for argument in arguments)
    spec = data.draw(spaces) + name + (":" + joined if joined else "") + data.draw(spaces)
    assert split_spec(spec) == (name, positional, named)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("", ("", [], {})),
        ("ring", ("ring", [], {})),
        ("ring:", ("ring", [], {})),
        ("topk:,,0.1,", ("topk", ["0.1"], {})),
        ("a:b:c", ("a", ["b:c"], {})),
        ("a:k=b=c", ("a", [], {"k": "b=c"})),
        ("a:k=", ("a", [], {"k": ""})),
        ("edge-lowrank:1,rounds=3", ("edge-lowrank", ["1"], {"rounds": "3"})),
    ],
)
def test_spellings_at_the_edge(spec: str, parts: tuple[str, list[str], dict[str, str]]) -> None:
    assert split_spec(spec) == parts


def test_the_nearest_name_is_offered_and_all_are_listed() -> None:
    error = nearest("compressor", "topkk", ["none", "topk", "randk"])
    assert isinstance(error, ValueError)
    assert str(error) == "unknown compressor 'topkk'; did you mean 'topk'? Known: none, topk, randk"


def test_of_many_names_only_the_nearest_is_offered() -> None:
    names = [f"method-{number}" for number in range(40)]
    assert str(nearest("algorithm", "metod-7", names)) == (
        "unknown algorithm 'metod-7'; did you mean 'method-7'? There are 40; `docom list` names them"
    )
    assert str(nearest("algorithm", "xyzzy", names)).endswith(", ".join(names))


def test_nothing_is_offered_where_nothing_is_near() -> None:
    error = str(nearest("schedule", "xyzzy", iter(["constant", "steps"])))
    assert "did you mean" not in error
    assert error.startswith("unknown schedule 'xyzzy'")
    assert error.endswith("Known: constant, steps")


def test_the_sentence_is_whole_without_an_offer() -> None:
    assert "'xyzzy' Known" not in str(nearest("schedule", "xyzzy", ["constant"])), "two sentences need a stop between"


@given(st.lists(words, min_size=1, max_size=6, unique=True), st.data())
def test_a_name_with_one_letter_too_many_is_recognised(known: list[str], data) -> None:
    right = data.draw(st.sampled_from(known))
    place = data.draw(st.integers(0, len(right)))
    wrong = right[:place] + "Z" + right[place:]
    offered = str(nearest("name", wrong, known)).split("did you mean ")[1].split("?")[0]
    assert offered in [repr(name) for name in known]
    if len(known) == 1:
        assert offered == repr(right)


def test_the_examples_in_the_documentation_run() -> None:
    tried = doctest.testmod(names)
    assert tried.attempted > 0
    assert tried.failed == 0
