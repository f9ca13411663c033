"""The key pair of a site. Its private part never leaves the machine; its public part stands in the members' file.

Keys are those of CURVE (Curve25519), made by libzmq and written as 40 printable characters (Z85).
"""

from __future__ import annotations

import os
import re
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

from docom.sites import needs

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
KEY = re.compile(r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$")
ENDING = ".secret"
LONGEST_FILE = 4096
BELONGS_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class KeyPair:
    """The keys of one site. The private one is not shown when the object is printed."""

    public: str
    secret: str = field(repr=False)


def check_name(name: object) -> str:
    """The name of a site, or an error that says what a name is."""
    if not (isinstance(name, str) and NAME.match(name)):
        raise ValueError(
            f"the name of a site has 1 to 64 letters, digits, dots, dashes and underscores, and starts with a letter or "
            f"digit, such as basel or clinic-3; got {name!r}"
        )
    return name


def check_key(key: object, whose: str) -> str:
    """A public key, or an error that says how to make one."""
    if not (isinstance(key, str) and KEY.match(key)):
        raise ValueError(
            f"the key of {whose} is the 40 characters that `docom site keys {whose}` prints, in single quotes; got "
            f"{str(key)[:60]!r}"
        )
    needs.zmq()
    from zmq.utils import z85

    try:
        raw = z85.decode(key.encode())
    except (ValueError, struct.error) as error:
        raise ValueError(f"the key of {whose} is damaged ({error}); copy it again") from None
    if len(raw) != 32 or not any(raw):
        raise ValueError(f"the key of {whose} is no public key; copy the one that `docom site keys {whose}` prints")
    return key


def make_keys(name: str, folder: Path) -> tuple[Path, str]:
    """Make a key pair and write its private part; the file and the public part.

    Raises:
        FileExistsError: there are keys of that name, which are never overwritten.
    """
    check_name(name)
    zmq = needs.zmq()
    public, secret = (part.decode() for part in zmq.curve_keypair())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}{ENDING}"
    text = (
        f"# The private key of site {name}: keep it on this machine, readable by its owner only.\n{public}\n{secret}\n"
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    except FileExistsError:
        raise FileExistsError(
            f"{path} exists, and keys are never overwritten: others may know this site by them; choose another name or "
            "another --out, or move the file away"
        ) from None
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return path, public


def read_keys(path: Path) -> KeyPair:
    """The key pair in a file that `make_keys` has written.

    Raises:
        FileNotFoundError: there is none.
        PermissionError: others than its owner may read it.
        ValueError: it holds no key pair.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no private key {path}; `docom site keys {path.stem} --out {path.parent}` makes one, or say where it "
            "is with --key"
        ) from None
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & BELONGS_TO_OTHERS:
        raise PermissionError(
            f"{path} may be read or changed by others (mode {stat.S_IMODE(status.st_mode):o}); a private key is its owner's "
            f"only: chmod 600 {path}"
        )
    if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST_FILE:
        raise ValueError(f"{path} is no private key of a site")
    lines = [line for line in path.read_text(errors="replace").splitlines() if line and not line.startswith("# ")]
    if len(lines) != 2 or not all(KEY.match(line) for line in lines):
        raise ValueError(f"{path} is no private key of a site: it has two lines of 40 characters after its comment")
    public, secret = lines
    if public_of(secret) != public:
        raise ValueError(f"{path} is damaged: its two keys do not belong together")
    return KeyPair(public, secret)


def public_of(secret: str) -> str:
    """The public key that belongs to a private one."""
    found: bytes = needs.zmq().curve_public(secret.encode())
    return found.decode()
