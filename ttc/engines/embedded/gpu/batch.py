"""What is decoded together on a GPU: as `core.batch` says, but rows stay on the device for several tokens at a time.

All draws of a prompt feed its last token themselves, into one place that they share, and sample their first token in
the captured step like every other: a prompt needs no row and no sampler of its own. What the host alone can see (stop
strings, aborts) ends a draw up to two blocks late; what came after the end is counted apart and never delivered.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc.engines.embedded.core.batch import Batch
from ttc.engines.embedded.core.pool import PAGE
from ttc.engines.embedded.core.requests import Job, LiveDraw
from ttc.engines.embedded.device.step import RowTokens
from ttc.engines.embedded.gpu.body import DeviceBody
from ttc.engines.embedded.gpu.decoder import DeviceDecoder
from ttc.errors import EngineError

__all__ = ["DeviceBatch"]


class DeviceBatch(Batch):
    """A `Batch` over a `DeviceBody` and a `DeviceDecoder`."""

    extras = frozenset({"repetition_penalty"})  # a step hands out the drawn token alone, and does not count tokens
    _body: DeviceBody
    _decoder: DeviceDecoder  # type: ignore[assignment]  # its rows are draws

    def tick(self) -> None:
        """Prefill what there is room for, start draws on the rows that are free, take the tokens of a block."""
        self._admit()
        self._launch()
        if not self._decoder.idle:
            self._step()

    def _renew(self) -> None:
        self._decoder.reset()

    def _promised(self) -> int:
        """See `Batch._promised`; rows hold pages ahead of their tokens already."""
        return sum(PAGE + max(row.reserve - _room(row), 0) for row in self.rows if isinstance(row, LiveDraw))

    def _lead(self, job: Job) -> None:
        """Make a place for the last token of a prompt; its draws start at once."""
        job.lead = self._body.pool.segment(job.segment)
        self._body.pool.reserve(job.lead, 1)
        job.lead.length = 1
        job.computed += 1
        self._open.append(job)

    def _begin(self, starting: Sequence[LiveDraw]) -> None:
        """Give every draw a row."""
        for number, draw in enumerate(starting):
            self._newcomers = [waiting.job for waiting in starting[number:]]
            job = draw.job
            if job.lead is None:
                raise EngineError("a draw was started before its prompt was computed")
            # The prefix tree may have gone on behind the last token of the prompt by now.
            lead = job.lead.upto(len(job.ids)) or job.lead
            draw.segment = self._body.pool.segment(lead)
            self._decoder.start(draw, draw.segment, lead)
            self._leave_line(draw)
            self._seat(draw)
        self._newcomers = []

    def _step(self) -> None:
        """Hand out the tokens of a block, and free the rows that have ended."""
        parts = self._decoder.look()
        self._remember({draw.job for draw in parts})
        for draw, part in parts.items():
            self._hand_out(draw, part)
        for row in range(len(self.rows) - 1, -1, -1):  # backwards: a freed row is filled with the last one
            entry = self.rows[row]
            if isinstance(entry, LiveDraw) and entry.ended:
                self._drop(row)

    def _hand_out(self, draw: LiveDraw, part: RowTokens) -> None:
        """Append tokens until the draw ends."""
        for number, token in enumerate(part.tokens):
            draw.take(token)
            if part.logprobs:
                draw.logprobs.append(part.logprobs[number])
                draw.certainty.append(part.certainty[number])
            last = number + 1 == len(part.tokens)
            draw.late = len(part.tokens) - number - 1
            self._on_token(draw)
            if draw.ended:
                return
            if last and part.ended is not None:
                raise EngineError(f"the device ended a draw ({part.ended}) that goes on: {token} is no end of it")
        draw.late = 0

    def _remember(self, jobs: set[Job]) -> None:
        """Let the prefix tree have the last tokens of prompts, whose keys are there by now.

        Where all draws have started, the token moves to the end of what it continues, and they follow it there; else it
        stays where the draws that are yet to start compute it once more.
        """
        new = {job: job.lead for job in jobs if job.lead is not None and job.segment is not job.lead}
        for job, lead in new.items():
            job.segment = lead
            holder = lead if job.waiting else self.tree.absorb(job.ids, lead)
            if holder is lead:
                self.tree.insert(job.ids, lead)
                continue
            job.segment = job.lead = holder
            self._body.pool.version += 1
            for row in self.rows:
                if isinstance(row, LiveDraw) and row.segment is not None and row.segment.parent is lead:
                    row.segment.adopt(holder)

    def _drop(self, row: int) -> None:
        """See `Batch._drop`."""
        entry = self.rows[row]
        if not isinstance(entry, LiveDraw):
            raise TypeError("a prompt has no row on a device")
        self._decoder.stop(entry)
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last
        if entry.segment is not None:
            entry.segment.length = max(entry.position - entry.segment.start, 0)
            self._body.device_pool.trim(entry.segment)
        self._leave_row(entry)

    def _release(self, job: Job) -> None:
        """See `Batch._release`."""
        super()._release(job)
        if not job.live and not job.waiting:
            job.lead = None


def _room(draw: LiveDraw) -> int:
    """Tokens that the pages of a row hold beyond those that it has got."""
    segment = draw.segment
    return 0 if segment is None else max(segment.start + len(segment.pages) * PAGE - draw.position, 0)
