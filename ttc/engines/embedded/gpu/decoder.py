"""The draws that decode on a GPU: rows of the captured step, pages ahead of their tokens, and their common plan.

Each row's own segment gets pages for the next two blocks and some more tokens, for all rows at once, so that a new plan
is made once in several blocks and not for every row that fills a page. A row's keys are read up to the position that
the device has reached (`kernels.plan`), so planned room costs nothing.

A draw with a grammar gets the mask of its next token before each block. While there is such a draw, a block is one
token for every row, and the device waits while the host computes masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ttc.engines.embedded.core.pool import Segment
from ttc.engines.embedded.core.requests import LiveDraw
from ttc.engines.embedded.core.sampler import heat
from ttc.engines.embedded.device.rows import NUM_STOPS, RowStart
from ttc.engines.embedded.device.step import DeviceStep, RowTokens
from ttc.engines.embedded.gpu.attention import PlannedAttention
from ttc.engines.embedded.gpu.body import DeviceBody
from ttc.engines.embedded.kernels.plan import PagedNode

_AHEAD = 4
"""Tokens of a block."""
_ROOM = 64
"""Tokens beyond the next two blocks that a plan reserves for every row."""


@dataclass(slots=True)
class _Seat:
    """A live draw: the segment of its tokens, and the last position that it may reach."""

    draw: LiveDraw
    segment: Segment
    limit: int


class DeviceDecoder:
    """Rows of `LiveDraw`s; may be called only from the worker thread."""

    def __init__(self, body: DeviceBody) -> None:
        self._pool = body.device_pool
        self._attention = PlannedAttention(
            self._pool, body.runtime, body.kernels, body.windows, _multiprocessors(body.device)
        )
        self._step = DeviceStep(body.step_weights, self._attention, body.runtime, ahead=_AHEAD, ops=body.ops)
        self._seats: dict[int, _Seat] = {}
        self._tickets: dict[LiveDraw, int] = {}
        self._ends: dict[int, int] = {}  # by ticket: the position up to which the plan has room
        self._version = -1

    @property
    def idle(self) -> bool:
        """Whether nothing is running and no result is outstanding."""
        return self._step.idle

    @property
    def captures(self) -> int:
        """Graphs captured so far."""
        return self._step.graphs.captures

    def start(self, draw: LiveDraw, segment: Segment, lead: Segment) -> None:
        """Start a draw whose newest token is the last of `lead`; its samples go to `segment`.

        The keys and values of that newest token are written to `lead`.
        """
        request, length = draw.request, segment.start
        sampling, rule = request.sampling, request.rule
        newest = draw.ids[-1] if draw.ids else request.ids[-1]
        limit = len(request.ids) + sampling.max_tokens - 1
        self._pool.reserve(segment, 1)
        ticket = self._step.start(
            RowStart(
                token=newest,
                position=length - 1,
                first=length,
                slot=int(self._pool.slots(lead, length - 1 - lead.start, 1)[0]),
                pages=tuple(segment.pages),
                limit=limit,
                key=draw.key,
                temperature=heat(sampling.temperature),
                top_p=sampling.top_p,
                top_k=sampling.top_k or 0,
                min_p=sampling.min_p,
                stop_ids=tuple(sorted(rule.final))[:NUM_STOPS],  # the host checks for the others
                wants_logprobs=sampling.logprobs,
                masked=draw.guide is not None,
                penalty=sampling.repetition_penalty,
                text=(*request.ids, *draw.ids) if sampling.repetition_penalty != 1 else (),
            )
        )
        self._seats[ticket] = _Seat(draw, segment, limit)
        self._tickets[draw] = ticket

    def stop(self, draw: LiveDraw) -> None:
        """Drop a draw unless the device already has; its segment then holds what the caller has recorded."""
        ticket = self._tickets.pop(draw)
        del self._seats[ticket]
        self._ends.pop(ticket, None)
        if ticket in self._step.tickets:
            self._step.stop(ticket)

    def reset(self) -> None:
        """Drop every draw and all outstanding results."""
        for draw in list(self._tickets):
            self.stop(draw)
        self._step.drain()

    def look(self) -> Mapping[LiveDraw, RowTokens]:
        """Queue the next block, and return the tokens of the one before."""
        if self._stale():
            self._plan()
        self._constrain()
        look = self._step.look()
        return {self._seats[ticket].draw: part for ticket, part in look.rows.items()}

    def _constrain(self) -> None:
        """Set the mask of the next token of each draw with a grammar."""
        for ticket, seat in self._seats.items():
            if seat.draw.guide is not None:
                self._step.constrain(ticket, seat.draw.guide.words())

    # -- the plan ----------------------------------------------------------------------------------------------------

    def _stale(self) -> bool:
        """Whether the next block needs a new plan: a row is new or has too little room, or pages have moved."""
        if self._version != self._pool.version:
            return True
        return any(
            self._ends.get(ticket, 0) < min(seat.limit, self._step.reach(ticket) + _AHEAD)
            for ticket, seat in self._seats.items()
        )

    def _plan(self) -> None:
        positions = [-1] * self._step.num_places
        readers: dict[Segment, list[int]] = {}
        for ticket, seat in self._seats.items():
            self._supply(ticket, seat)
            place = self._step.index(ticket)
            positions[place] = self._step.reach(ticket)
            part: Segment | None = seat.segment
            while part is not None:
                readers.setdefault(part, []).append(place)
                part = part.parent
        own = {seat.segment: self._ends[ticket] for ticket, seat in self._seats.items()}
        nodes = [
            PagedNode(part.pages, own[part] - part.start if part in own else part.length, part.start, places)
            for part, places in readers.items()
        ]
        self._attention.plan(nodes, positions)
        self._version = self._pool.version

    def _supply(self, ticket: int, seat: _Seat) -> None:
        """Reserve pages for the next two blocks and some more tokens, up to the draw's last position."""
        segment = seat.segment
        end = min(seat.limit, self._step.reach(ticket) + _AHEAD + _ROOM)
        before = len(segment.pages)
        self._pool.reserve(segment, max(end - segment.start, 1) - segment.length)
        if len(segment.pages) > before:
            self._step.grow(ticket, segment.pages)
        self._ends[ticket] = end


def _multiprocessors(device: torch.device) -> int:
    """Number on the device; that of an H100 where there is none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
