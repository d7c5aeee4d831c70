"""What is decoded together: prompts waiting to be computed, prompts with draws to start, and one row per live draw.

A row is given back the moment its draw ends, and its keys and values go to the prefix cache, where a continuation finds
them. Everything here runs in the worker thread of `ttc.engines.embedded.scheduler`, which decides when a draw ends.
`BatchLimits` says how much an engine may hold at once: sequences in a batch, and bytes of keys and values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ttc.engines.embedded.alone import alone
from ttc.engines.embedded.cache import PrefixTree, Segment
from ttc.engines.embedded.decode import Decoder
from ttc.engines.embedded.model import Body
from ttc.engines.embedded.prefill import advance
from ttc.engines.embedded.requests import GenerateRequest, Job, LiveDraw, PromptRow
from ttc.engines.embedded.sampler import Rows, SampledTokens, sample

__all__ = ["Batch", "BatchLimits", "default_batch_bytes"]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`batch_bytes` bounds the keys and values of the running batch, `cache_bytes` those that wait to be reused."""

    max_batch: int
    batch_bytes: int
    cache_bytes: int

    def rows(self, longest: int, kv_bytes: int) -> int:
        """How many sequences of up to `longest` tokens may run at once; at least one."""
        return max(min(self.max_batch, self.batch_bytes // max(longest * kv_bytes, 1)), 1)


def default_batch_bytes(device: torch.device) -> int:
    """Half of a GPU's free memory, a quarter of the machine's otherwise."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


class Batch:
    """The rows of a decoder and the jobs that wait for them."""

    def __init__(
        self,
        body: Body,
        make_decoder: Callable[[Body], Decoder],
        limits: BatchLimits,
        on_token: Callable[[LiveDraw], None],
    ) -> None:
        """`on_token` is called for every draw that has just got a token, and may set its `ended`."""
        self._body, self._make_decoder, self._limits, self._on_token = body, make_decoder, limits, on_token
        self.rows: list[LiveDraw | PromptRow] = []
        self._pending: dict[tuple[int, ...], Job] = {}  # not yet prefilled, in order of arrival
        self._open: list[Job] = []  # prefilled, with draws that still wait for a row
        self._table: Rows | None = None
        self._decoder = alone(lambda: make_decoder(body))
        self._kv_bytes = body.dims.kv_bytes(body.dtype.itemsize)
        self.tree = PrefixTree(max(limits.cache_bytes // self._kv_bytes, 1))

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.rows or self._pending or self._open)

    def add(self, request: GenerateRequest) -> None:
        """Let the draws of a request wait for their prompt; equal prompts share one job."""
        job = self._pending.get(request.ids)
        if job is None:
            job = self._pending[request.ids] = Job(request.ids)
        job.waiting += [LiveDraw(request, job, d, key) for d, key in zip(request.draws, request.keys, strict=True)]
        job.room = max(job.room, len(job.ids) + request.sampling.max_tokens)

    def tick(self) -> None:
        """Prefill what there is room for, decode one token for every row, start draws on the rows that are free."""
        self._admit()
        if self.rows:
            self._step()
        self._launch()

    def remove(self, request: GenerateRequest) -> list[LiveDraw]:
        """Drop the draws of a request, wherever they are; returns those that had not ended."""
        dropped: list[LiveDraw] = []
        for row in range(len(self.rows) - 1, -1, -1):
            entry = self.rows[row]
            if isinstance(entry, LiveDraw) and entry.request is request:
                dropped.append(entry)
                self._drop(row)
        for job in [*self._pending.values(), *self._open]:
            for draw in [draw for draw in job.waiting if draw.request is request]:
                draw.computed = job.charge()
                job.waiting.remove(draw)
                dropped.append(draw)
            if not job.waiting:
                self._pending.pop(job.ids, None)
        return dropped

    def clear(self) -> list[LiveDraw]:
        """Start from an empty state after a failure; returns the draws that had not ended."""
        draws = [row for row in self.rows if isinstance(row, LiveDraw) and not row.ended]
        jobs = {id(job): job for job in [*self._pending.values(), *self._open, *(row.job for row in self.rows)]}
        for job in jobs.values():
            draws += job.waiting
        for draw in draws:
            draw.computed += draw.job.charge()
        self.rows.clear()
        self._pending.clear()
        self._open, self._table = [], None
        self._decoder = self._make_decoder(self._body)
        return draws

    def forget(self) -> None:
        """Drop every cached key and value: the weights are others now. Only while idle."""
        self.tree.clear()
        self._decoder = self._make_decoder(self._body)

    # -- a tick ------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Prefill the oldest prompts for which rows are free, and give each a leading row."""
        if not self._pending:
            return
        num_rows = len(self.rows) + sum(len(job.waiting) for job in self._open)
        longest = self._longest()
        admitted: list[Job] = []
        # In order of arrival: the first prompt without room stops all behind it, so that none overtakes a longer one
        # for ever. A prompt's room is that of its longest draw, so an admitted draw is never thrown out again.
        for job in self._pending.values():
            longest = max(longest, job.room)
            if num_rows >= self._limits.rows(longest, self._kv_bytes):
                break
            num_rows += max(len(job.waiting), 1)
            admitted.append(job)
        for job in advance(admitted, self._body, self.tree):
            del self._pending[job.ids]
            job.group = self._decoder.open(job.segment, len(job.waiting))
            self._decoder.add(job.group)
            self.rows.append(PromptRow(job))
            self._table = None

    def _longest(self) -> int:
        """Most tokens that any running prompt may come to, its new ones included."""
        return max((job.room for job in [*self._open, *(row.job for row in self.rows)]), default=0)

    def _step(self) -> None:
        """Decode one token for every row; then turn leading rows into open jobs."""
        rows, decoder = self.rows, self._decoder
        hidden = decoder.step([row.feed for row in rows], [row.position for row in rows])  # (rows, hidden size)
        logits = self._body.logits(hidden)  # (rows, vocab)
        leads = [(i, row.job) for i, row in enumerate(rows) if isinstance(row, PromptRow)]
        if len(leads) < len(rows):
            live = [i for i, row in enumerate(rows) if not isinstance(row, PromptRow)]
            draws = [row for row in rows if not isinstance(row, PromptRow)]
            if self._table is None:
                self._table = _table(draws)
            live_logits = logits if not leads else logits[torch.tensor(live, device=logits.device)]
            result = sample(live_logits, self._table)
            # Randomness is keyed by the draw and the token's position: who shares the batch changes nothing.
            np.add(self._table.positions, np.uint64(1), out=self._table.positions)
            self._take(draws, result)
        for i, job in leads:
            job.logits, job.last = logits[i].clone(), decoder.taken(i, 1)  # (vocab,), (layers, 2, kv heads, 1, D)
            job.computed += 1
            decoder.absorb(i)
            self._open.append(job)
        for i in range(len(rows) - 1, -1, -1):  # backwards: a freed row is filled with the last one
            row = rows[i]
            if isinstance(row, PromptRow) or row.ended:
                self._drop(i)

    def _launch(self) -> None:
        """Sample first tokens for waiting draws of open jobs while rows are free."""
        if not self._open:
            return
        starting: list[LiveDraw] = []
        limit = self._limits.rows(self._longest(), self._kv_bytes)
        for job in self._open:
            free = max(limit - len(self.rows) - len(starting), 0)
            starting += job.waiting[:free]
            job.waiting = job.waiting[free:]
        if starting:
            # (draws, vocab): all draws of a prompt sample their first token from the same logits.
            logits = torch.stack([draw.job.logits for draw in starting if draw.job.logits is not None])
            for draw in starting:
                draw.computed = draw.job.charge()
            self._take(starting, sample(logits, _table(starting)))
            for draw in starting:
                if not draw.ended and draw.job.group is not None:
                    self._decoder.add(draw.job.group)
                    self.rows.append(draw)
                    draw.job.live += 1
            self._table = None
        opened, self._open = self._open, [job for job in self._open if job.waiting]
        for job in opened:
            self._release(job)

    def _take(self, draws: Sequence[LiveDraw], result: SampledTokens) -> None:
        """Append one sampled token to every draw, and tell."""
        if result.logprobs is not None and result.certainty is not None:
            for draw, logprob, certainty in zip(
                draws, result.logprobs.tolist(), result.certainty.tolist(), strict=True
            ):
                draw.logprobs.append(logprob)
                draw.certainty.append(certainty)
        for draw, token in zip(draws, result.tokens.tolist(), strict=True):
            draw.ids.append(token)
            self._on_token(draw)

    def _drop(self, row: int) -> None:
        """Free a row; a draw's keys and values go to the prefix cache."""
        entry = self.rows[row]
        job = entry.job
        if isinstance(entry, LiveDraw):
            count = len(entry.ids) - 1
            if count > 0 and job.last is not None:
                states = torch.cat((job.last, self._decoder.taken(row, count)), 3)
                self.tree.insert((*job.ids, *entry.ids[:-1]), Segment(job.segment, states))
            job.live -= 1
        self._decoder.remove(row)
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last
        self._table = None
        if isinstance(entry, LiveDraw):
            self._release(job)

    def _release(self, job: Job) -> None:
        """Close the job's group once nobody runs on it or waits for it."""
        if job.group is not None and not job.live and not job.waiting:
            self._decoder.close(job.group)
            job.group = job.logits = job.last = None


def _table(draws: Sequence[LiveDraw]) -> Rows:
    """The sampler's settings for `draws`, whose next token is at position + 1 of the newest."""
    settings = [draw.request.sampling for draw in draws]
    return Rows(
        temperature=np.array([s.temperature for s in settings], np.float32),
        top_p=np.array([s.top_p for s in settings], np.float32),
        top_k=np.array([s.top_k or 0 for s in settings], np.int64),
        keys=np.array([draw.key for draw in draws], np.uint64),
        positions=np.array([draw.position + 1 for draw in draws], np.uint64),
        wants_logprobs=any(s.logprobs for s in settings),
    )
