"""Messages between two sites are taken exactly once and in order, over bad connections and over restarts of both ends."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docom.sites import frames
from docom.sites.frames import CHUNK, Frame
from docom.sites.streams import Inbox, OtherHistory, Outbox, Piece

RUN = bytes(range(16))
LIMIT = 2**24


def framed(piece: Piece) -> Frame:
    return Frame(frames.DATA, 0, 1, RUN, 5, piece.number, piece.before, piece.after, last=piece.last, piece=piece.data)


def message(number: int) -> bytes:
    """The message that a deterministic program sends as its number so and so: sometimes empty, sometimes in several pieces."""
    draw = random.Random(number)
    size = draw.choice([0, 1, 40, 1000, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
    return draw.randbytes(size)


@given(
    kind=st.sampled_from(frames.KINDS), sender=st.integers(0, 2**16 - 1), number=st.integers(0, 2**64 - 1),
    sums=st.tuples(*[st.integers(0, 2**32 - 1)] * 3), last=st.booleans(), piece=st.binary(max_size=600),
)  # fmt: skip
def test_frames_come_back_as_they_were(
    kind: int, sender: int, number: int, sums: tuple[int, int, int], last: bool, piece: bytes
) -> None:
    frame = Frame(kind, sender, 1, RUN, 7, number, *sums[:2], number, sums[2], 3, last, 2, piece)
    assert frames.parse(frame.to_bytes()) == frame


@given(st.binary(max_size=300))
def test_other_bytes_are_no_frames(garbage: bytes) -> None:
    with pytest.raises(frames.BadFrame):
        frames.parse(garbage)


@given(st.integers(0, frames.HEADER * 8 - 1))
def test_no_bit_of_a_header_can_be_changed_unseen(bit: int) -> None:
    data = bytearray(Frame(frames.DATA, 0, 1, RUN, 5, piece=b"abc").to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(frames.BadFrame):
        frames.parse(bytes(data))


class End:
    """A site that sends a message and takes one in each step, checkpoints now and then, and may be killed."""

    def __init__(self) -> None:
        self.out, self.inbox = Outbox(LIMIT), Inbox(LIMIT)
        self.session, self.steps, self.wants = 1, 0, False
        self.checkpoint = self.snapshot()
        self.older = self.checkpoint

    def snapshot(self):
        return self.steps, list(self.out.keep()), self.out.end, self.out.sum, self.inbox.taken

    def save(self) -> None:
        """The older one of the two checkpoints that are kept decides what will not be needed again."""
        self.older, self.checkpoint = self.checkpoint, self.snapshot()
        self.inbox.saved = self.older[4].pieces

    def die(self, to_older: bool) -> None:
        steps, pieces, end, checksum, mark = self.older if to_older else self.checkpoint
        if to_older:
            self.checkpoint = self.older
        self.out, self.inbox = Outbox(LIMIT), Inbox(LIMIT)
        self.out.restore(pieces, end, checksum)
        self.inbox.restore(mark)
        self.inbox.saved = self.older[4].pieces
        self.steps, self.wants, self.session = steps, False, self.session + 1

    def run(self, mine: int, theirs: int) -> None:
        if not self.wants:
            self.out.add(message(10 * self.steps + mine))
            self.wants = True
        came = self.inbox.take(self.steps)
        if came is not None:
            assert came == message(10 * self.steps + theirs)
            self.steps, self.wants = self.steps + 1, False


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.1, 0.4]), deaths=st.sampled_from([0.0, 0.01, 0.05]))
def test_messages_are_taken_once_and_in_order(seed: int, loss: float, deaths: float) -> None:
    draw, ends = random.Random(seed), (End(), End())
    known = [0, 0]  # the session of the other end that each end knows
    steps, goal = 0, 12
    while min(end.steps for end in ends) < goal:
        steps += 1
        assert steps < 20_000, "it does not get on"
        for a in (0, 1):
            me, other = ends[a], ends[1 - a]
            if draw.random() < deaths:
                me.die(draw.random() < 0.3)
                known[a] = 0
            me.run(a, 1 - a)
            if draw.random() < 0.3 and not me.wants:  # between two steps
                me.save()
            pieces = list(me.out.due(4))
            if draw.random() < 0.2:
                me.out.unsend(me.out.received)  # nothing was heard for some time
            if draw.random() < 0.2:
                pieces += draw.sample(me.out.keep(), min(2, len(me.out.keep())))  # repeated, early
            draw.shuffle(pieces) if draw.random() < 0.1 else None
            for piece in pieces:
                if draw.random() < loss:
                    continue
                frame = framed(piece)
                if piece.data and draw.random() < 0.05:
                    broken = replace(frame, piece=bytes([piece.data[0] ^ 1]) + piece.data[1:])
                    assert other.inbox.accept(broken) is not None
                assert other.inbox.accept(frame) in (None, "repeated", "early")
            if draw.random() >= loss:
                begins = known[1 - a] != me.session
                known[1 - a] = me.session
                other.out.heard(me.inbox.received, me.inbox.sum, me.inbox.saved, begins)
    assert all(end.inbox.bytes_waiting <= 2 * (2 * CHUNK + 7) for end in ends)
    assert all(end.out.bytes_kept <= LIMIT for end in ends)


def test_a_restarted_site_that_computes_other_messages_is_found_out() -> None:
    out, inbox = Outbox(LIMIT), Inbox(LIMIT)
    for number in range(3):
        out.add(message(number))
    for piece in out.due(100):
        inbox.accept(framed(piece))
    again = Outbox(LIMIT)
    again.heard(inbox.received, inbox.sum, 0, begins=True)
    again.add(message(0))
    again.add(message(1))
    with pytest.raises(OtherHistory, match="bit for bit"):
        again.add(message(6))
    assert inbox.accept(framed(Piece(inbox.received, b"x", True, 1, 2))) == "other history"


def test_a_receiver_that_needs_what_is_gone_is_told_why() -> None:
    out = Outbox(1000)
    for _ in range(5):
        out.add(bytes(600))
        list(out.due(100))
        out.heard(out.end, out.sum, 0, begins=False)
    assert out.bytes_kept <= 1000
    with pytest.raises(OtherHistory, match="only those from 4 on are kept"):
        out.heard(2, 0, 0, begins=True)


@pytest.mark.parametrize(("received", "saved"), [(3, 4), (10**6, 0)])
def test_impossible_acknowledgements_are_refused(received: int, saved: int) -> None:
    out = Outbox(LIMIT)
    out.add(b"abc")
    with pytest.raises(OtherHistory, match="it says that it has"):
        out.heard(received, 0, saved, begins=False)


def test_what_waits_is_bounded() -> None:
    out, inbox = Outbox(LIMIT), Inbox(2 * CHUNK)
    for _ in range(3):
        out.add(bytes(CHUNK))
    answers = [inbox.accept(framed(piece)) for piece in out.due(100)]
    assert answers == [None, None, "full"]
    assert inbox.take(0) == bytes(CHUNK)
    assert inbox.take(0) is None
    out.unsend(inbox.received)
    assert [inbox.accept(framed(piece)) for piece in out.due(100)] == [None]
