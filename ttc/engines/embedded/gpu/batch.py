"""The batch on a GPU: as `core.batch`, but rows stay on the device for several tokens at a time.

All draws of a prompt feed its last token themselves, into one shared slot, and sample their first token in the captured
step like any other: a prompt needs no row and no separate sampling. Conditions that only the host can check (stop
strings, aborts) end a draw up to two blocks late; tokens after the end are counted as overrun and never delivered.
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


class DeviceBatch(Batch):
    """A `Batch` over a `DeviceBody` and a `DeviceDecoder`."""

    extras = frozenset({"repetition_penalty"})  # a step returns only the sampled token, and counts no earlier ones
    _body: DeviceBody
    _decoder: DeviceDecoder  # type: ignore[assignment]  # its rows are draws

    def tick(self) -> None:
        """One step: prefill prompts for which there is room, start draws on free rows, take the tokens of a block."""
        self._admit()
        self._launch()
        if not self._decoder.idle:
            self._step()

    def _renew(self) -> None:
        self._decoder.reset()

    def _reserved(self) -> int:
        """See `Batch._reserved`; rows already hold pages ahead of their tokens."""
        return sum(PAGE + max(row.reserve - _room(row), 0) for row in self.rows if isinstance(row, LiveDraw))

    def _lead(self, job: Job) -> None:
        """Reserve a slot for the last token of a prompt; its draws can start at once."""
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
            # by now the prefix tree may have appended tokens after the last one of the prompt
            lead = job.lead.upto(len(job.ids)) or job.lead
            draw.segment = self._body.pool.segment(lead)
            self._decoder.start(draw, draw.segment, lead)
            self._dequeue(draw)
            self._add_row(draw)
        self._newcomers = []

    def _step(self) -> None:
        """Deliver the tokens of a block, and free the rows that have ended."""
        parts = self._decoder.look()
        self._remember({draw.job for draw in parts})
        for draw, part in parts.items():
            self._hand_out(draw, part)
        for row in range(len(self.rows) - 1, -1, -1):  # backwards, since the last row moves into a freed one
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
                raise EngineError(
                    f"the device ended a draw ({part.ended}) that has not ended: {token} is not one of its stops"
                )
        draw.late = 0

    def _remember(self, jobs: set[Job]) -> None:
        """Add the last tokens of prompts, whose keys are computed by now, to the prefix tree.

        If all draws of a prompt have started, the token is appended to the segment before it, and the draws follow it
        there; otherwise it stays in its own slot, where the remaining draws compute it once more.
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
    """Tokens that a row's pages hold beyond those it has."""
    segment = draw.segment
    return 0 if segment is None else max(segment.start + len(segment.pages) * PAGE - draw.position, 0)
