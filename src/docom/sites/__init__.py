"""Sites: agents of different owners, on machines that do not trust the network, with no launcher and no server.

Each site has a key pair (`docom.sites.keys`) and the same members' file (`docom.sites.members_file`), which lists the names, the
public keys, the addresses and the links of all sites. `Site` is one of them, from its own point of view.
"""

from __future__ import annotations

from docom.sites.federation import Federation, Member
from docom.sites.keys import KeyPair, make_keys, read_keys
from docom.sites.members_file import read
from docom.sites.site import Site

__all__ = ["Federation", "KeyPair", "Member", "Site", "make_keys", "read", "read_keys"]
