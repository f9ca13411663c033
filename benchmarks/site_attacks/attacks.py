"""Ways to attack a site: each sends some hostile messages and returns how many.

The first four need no key; the last one has that of a member, which has gone bad.
"""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import Any

import zmq

from docom.sites import Site, frames
from docom.sites.frames import Frame

AT_ONCE = 200
ANSWER = 200  # milliseconds that are waited for a word of the site


class Target:
    """The site that is attacked, at this address; ``recording`` is what once passed from a member to it."""

    def __init__(self, site: Site, port: int, recording: bytes = b"") -> None:
        self.site, self.port, self.recording = site, port, recording
        self.draw = random.Random(0)
        self.context = zmq.Context()

    def close(self) -> None:
        """Give up."""
        self.context.destroy(linger=0)

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def garbage(self) -> int:
        """Bytes that are no protocol."""
        for _ in range(20):
            with suppress(OSError), self._connect() as line:
                line.sendall(self.draw.randbytes(self.draw.choice([1, 10, 64, 5000])))
        return 20

    def flood(self) -> int:
        """Connections that prove no key and stay."""
        lines = []
        for _ in range(AT_ONCE):
            with suppress(OSError):
                lines.append(self._connect())
        for line in lines:
            line.close()
        return AT_ONCE

    def replay(self) -> int:
        """What a member once sent, byte by byte, whole and in parts."""
        for end in (len(self.recording), self.draw.randrange(1, len(self.recording) + 1)):
            with suppress(OSError), self._connect() as line:
                line.sendall(self.recording[:end])
        return 2

    def unlisted_key(self) -> int:
        """Frames of somebody whose key is not in the members' file."""
        public, secret = zmq.curve_keypair()
        return self._with_key(public, secret, AT_ONCE, member=0)

    def bad_member(self) -> int:
        """Frames of a member that has gone bad."""
        keys = self.site.keys
        return self._with_key(keys.public.encode(), keys.secret.encode(), 20 * AT_ONCE, self.site.agent)

    def _with_key(self, public: bytes, secret: bytes, count: int, member: int) -> int:
        line: Any = self.context.socket(zmq.DEALER)
        line.set(zmq.LINGER, 0)
        line.set(zmq.SNDTIMEO, 2000)
        line.set(zmq.CURVE_PUBLICKEY, public)
        line.set(zmq.CURVE_SECRETKEY, secret)
        line.set(zmq.CURVE_SERVERKEY, self.site.federation.members[0].key.encode())
        line.connect(f"tcp://127.0.0.1:{self.port}")
        sent = 0
        with suppress(zmq.Again):
            for _ in range(count):
                line.send(self._hostile(member))
                sent += 1
        line.poll(ANSWER)  # until the handshake has ended: what is sent before that stays in this process
        line.close()
        return max(1, sent)

    def _hostile(self, member: int) -> bytes:
        draw, run = self.draw, bytes.fromhex(self.site.federation.digest)[: frames.RUN_SIZE]
        kind = draw.randrange(5)
        if kind == 0:
            return draw.randbytes(draw.choice([0, 1, frames.HEADER, 3000]))
        if kind == 1:  # another run, or a member that it is not
            return Frame(
                frames.DATA, draw.choice([member, 1]), 0, draw.randbytes(16), draw.getrandbits(60), piece=b"x"
            ).to_bytes()
        if kind == 2:  # a greeting with facts that are not understood
            piece = draw.choice([b"{", b'{"facts": 3}', b'{"facts": {"a": ["b"]}}', b"[" * 5000])
            return Frame(frames.HELLO, member, 0, run, draw.getrandbits(60), piece=piece).to_bytes()
        frame = Frame(
            draw.choice(frames.KINDS), draw.choice([member, 1, 7]), draw.choice([0, 1]), run,
            draw.getrandbits(draw.choice([3, 60])), draw.getrandbits(draw.choice([2, 60])), received=draw.getrandbits(20),
            saved=draw.getrandbits(20), piece=draw.randbytes(50),
        )  # fmt: skip
        data = bytearray(frame.to_bytes())
        if kind == 4:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return bytes(data)
