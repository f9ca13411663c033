"""Keys and the members' file of sites: what is accepted, what is refused and how it is said."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import docom
from docom.cli.app import app
from docom.sites import keys, members_file
from docom.sites.federation import Address, Federation

zmq = pytest.importorskip("zmq")
PUBLIC = [zmq.curve_keypair()[0].decode() for _ in range(5)]
NAMES = ("basel", "bern", "chur", "davos", "egg")


def members(count: int = 3, addresses: bool = True) -> list[dict[str, Any]]:
    return [
        {"name": name, "key": key} | ({"address": f"127.0.0.1:{7000 + at}"} if addresses else {})
        for at, (name, key) in enumerate(zip(NAMES[:count], PUBLIC[:count], strict=True))
    ]


def values(**changes: Any) -> dict[str, Any]:
    return {"name": "study", "members": members(), "topology": "ring"} | changes


def test_a_key_pair_is_written_for_its_owner_only_and_never_twice(tmp_path: Path) -> None:
    path, public = keys.make_keys("basel", tmp_path / "keys")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    pair = keys.read_keys(path)
    assert pair.public == public
    assert pair.secret not in repr(pair)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="never overwritten"):
        keys.make_keys("basel", tmp_path / "keys")
    assert path.read_bytes() == before


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path, _ = keys.make_keys("basel", tmp_path)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        keys.read_keys(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "two lines"),
        ("x\ny\n", "two lines"),
        ("{public}\n{public}\n", "do not belong together"),
        ("a" * 5000, "no private key"),
    ],
)
def test_a_damaged_private_key_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path, public = keys.make_keys("basel", tmp_path)
    path.write_text(text.replace("{public}", public))
    with pytest.raises(ValueError, match=why):
        keys.read_keys(path)


def test_the_example_is_a_members_file_once_it_has_keys(tmp_path: Path) -> None:
    text = members_file.EXAMPLE
    for public in PUBLIC[:3]:
        text = text.replace("'...'", f"'{public}'", 1)
    path = tmp_path / "federation.yaml"
    path.write_text(text)
    found = members_file.read(path)
    assert found.names == ["basel", "bern", "chur"]
    assert found.links == ((1, 0), (1, 2), (0, 2))
    assert [found.opens(i, j) for i, j in ((1, 0), (0, 1), (1, 2), (0, 2), (2, 0))] == [True, False, True, True, False]
    assert found.network.n == 3
    assert found.patience == 600


def test_the_digest_follows_the_content_and_not_the_layout(tmp_path: Path) -> None:
    first = members_file.from_values(values())
    again = members_file.from_values(yaml.safe_load("# a comment\n" + yaml.dump(values(), sort_keys=True)))
    other = members_file.from_values(values(patience=30, run={"seed": 1}))
    assert first.digest == again.digest != other.digest
    assert first.differences(other.content, "bern") == [
        "patience: 30 at bern, 600 here", "run seed: 1 at bern, nothing here",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"topolgy": "ring"}, "did you mean 'topology'"),
        ({"topology": None}, "either topology.* or links"),
        ({"links": [["basel", "bern"]]}, "either topology.* or links"),
        ({"topology": None, "links": [["basel", "bern"]]}, "not connected"),
        ({"topology": None, "links": [["basel", "burn"], ["bern", "chur"]]}, "did you mean 'bern'"),
        ({"topology": None, "links": [["basel", "basel"], ["bern", "chur"]]}, "to itself"),
        ({"topology": None, "links": [["basel", "bern"], ["bern", "basel"]]}, "twice"),
        ({"topology": None, "links": [["basel", "bern", "chur"]]}, "pair of members"),
        ({"topology": "rng"}, "ring"),
        ({"name": "two words"}, "the name of a site"),
        ({"members": members(1)}, "2 to 1000"),
        ({"members": "all"}, "2 to 1000"),
        ({"members": [*members(2), members(1)[0]]}, "name 'basel' occurs twice"),
        ({"members": [*members(2), {"name": "chur", "key": PUBLIC[0]}]}, r"occurs twice \(basel and chur\)"),
        ({"members": [*members(2), {"name": "chur", "key": PUBLIC[2], "adress": "a:1"}]}, "did you mean 'address'"),
        ({"members": [*members(2), {"name": "chur"}]}, "lacks 'key'"),
        ({"members": [*members(2), {"name": "chur", "key": "short"}]}, "40 characters"),
        ({"members": [*members(2), {"name": "chur", "key": "#" * 40}]}, "chur is (damaged|no public key)"),
        ({"members": [*members(2), {"name": "chur", "key": "0" * 40}]}, "no public key"),
        ({"members": [*members(2), {"name": "chur", "key": 12}]}, "40 characters"),
        ({"members": [*members(2), {"name": "chur", "key": PUBLIC[2], "address": "127.0.0.1:7000"}]}, "occurs twice"),
        ({"members": members(3, addresses=False)}, "neither has an address"),
        ({"patience": 0}, "seconds > 0"),
        ({"patience": True}, "seconds > 0"),
        ({"patience": float("nan")}, "seconds > 0"),
        ({"patience": 8}, "at least twice heartbeat"),
        ({"weights": 3}, "weights is a name"),
        ({"run": {"agents": 4}}, "number of members"),
        ({"run": {"plugins": {}}}, "do not run code"),
        ({"run": {"stepz": 4}}, "did you mean 'steps'"),
        ({"run": {"seed": -1}}, "seed"),
        ({"run": []}, "mapping of settings"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        members_file.from_values(values(**changes))


@pytest.mark.parametrize("text", ["a: &a [1]\nb: *a\n", "[" * 5000, "x" * (2**20 + 1), "\x00", "- a", "1"])
def test_hostile_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "federation.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"federation\.yaml: ") as refused:
        members_file.read(path)
    assert len(str(refused.value)) < 500


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*members_file.KEYS, "key", "x"]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_values_are_taken_or_refused_with_a_reason(content: Any) -> None:
    given = values() | content if isinstance(content, dict) else content
    try:
        found: object = members_file.from_values(given)
    except (ValueError, TypeError) as error:
        found = str(error)
    assert isinstance(found, Federation) or found


@pytest.mark.parametrize(
    ("text", "url"),
    [("a.b-c:1", "tcp://a.b-c:1"), ("10.0.0.1:65535", "tcp://10.0.0.1:65535"), ("[::1]:70", "tcp://[::1]:70")],
)
def test_addresses(text: str, url: str) -> None:
    assert Address.parse(text).url == url


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:1234567",
        "*:1",
        "::1:70",
        "[a]:1",
        "a b:1",
        "a/b:1",
        "-a:1",
        7,
        None,
        "a:١",
    ],
)
def test_other_texts_are_no_addresses(text: object) -> None:
    with pytest.raises(ValueError, match="7070"):
        Address.parse(text)


def test_all_addresses_of_a_machine_are_listened_at_only_when_asked_for() -> None:
    assert Address.parse("*:7070", any_host=True).url == "tcp://*:7070"


def sites(folder: Path, **changes: Any) -> Path:
    """A folder with the keys of three sites and their members' file."""
    found = members()
    for member in found:
        member["key"] = keys.make_keys(member["name"], folder / "keys")[1]
    path = folder / "federation.yaml"
    path.write_text(yaml.dump(values(members=found, **changes)))
    return path


def test_a_site_knows_its_member_its_key_and_where_it_listens(tmp_path: Path) -> None:
    path = sites(tmp_path, topology=None, links=[["chur", "basel"], ["bern", "chur"]])
    basel, bern, chur = (docom.Site(path, name) for name in NAMES[:3])
    assert [site.agent for site in (basel, bern, chur)] == [0, 1, 2]
    assert basel.neighbours == [2]
    assert str(basel.listens) == "127.0.0.1:7000"
    assert bern.listens is None, "it opens its only connection itself, although it has an address"
    assert basel.folder == tmp_path / "basel"
    assert basel.keys.secret not in repr(basel) + repr(vars(basel))
    assert str(docom.Site(path, "chur", listen="*:9000").listens) == "*:9000"


def test_a_site_needs_its_own_key(tmp_path: Path) -> None:
    path = sites(tmp_path)
    with pytest.raises(ValueError, match="did you mean 'bern'"):
        docom.Site(path, "brn")
    with pytest.raises(FileNotFoundError, match="docom site keys other"):
        docom.Site(path, "basel", key=tmp_path / "other.secret")
    with pytest.raises(ValueError, match="not the private key of basel"):
        docom.Site(path, "basel", key=tmp_path / "keys" / "bern.secret")


def test_commands_make_keys_and_a_members_file(tmp_path: Path) -> None:
    run = CliRunner()
    made = run.invoke(app, ["site", "keys", "basel", "--out", str(tmp_path)])
    assert made.exit_code == 0
    assert keys.read_keys(tmp_path / "basel.secret").public in made.output
    assert keys.read_keys(tmp_path / "basel.secret").secret not in made.output
    assert run.invoke(app, ["site", "keys", "basel", "--out", str(tmp_path)]).exit_code != 0
    file = tmp_path / "federation.yaml"
    assert run.invoke(app, ["site", "init", str(file)]).exit_code == 0
    assert file.read_text() == members_file.EXAMPLE
    assert isinstance(run.invoke(app, ["site", "init", str(file)]).exception, FileExistsError)
