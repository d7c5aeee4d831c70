"""The rows of a decoder: prompts to prefill, prefilled prompts with draws to start, and one row per running draw.

A row is freed as soon as its draw ends; its keys and values stay in place and become part of the prefix cache, where a
continuation finds them. A draw starts only when all tokens it may add fit into memory, so no draw has to be preempted.
Where several problems have draws to start, the problem with the fewest rows comes first, so a small request starts
before the next rows of a wide search. Problems start in order of arrival, as memory permits (`tenants`). Everything
here runs in the worker thread of `ttc.engines.embedded.core.scheduler`, which decides when a draw ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from ttc.core import PENALTIES, ExtraSampling
from ttc.engines.embedded.core.cache import PrefixTree
from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.pool import PAGE, Segment
from ttc.engines.embedded.core.prefill import CHUNK, advance, memory_errors
from ttc.engines.embedded.core.requests import GenerateRequest, Job, LiveDraw, PromptRow, num_top
from ttc.engines.embedded.core.sampler import Penalty, Rows, SampledTokens, heat, sample
from ttc.engines.embedded.core.tenants import Tenants
from ttc.engines.shared.compute import alone, free_memory

_SUCCESSES = 16
"""Successful prefills in a row after which the chunk size is doubled again."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """At most `max_batch` sequences at once; `kv_bytes` for keys and values, including cached ones."""

    max_batch: int
    kv_bytes: int


def default_kv_bytes(device: torch.device) -> int:
    """Four fifths of a GPU's free memory; on a CPU a quarter of free memory, or of all memory where free is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 5 * 4
    free = free_memory()
    return (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if free is None else free) // 4


class Decoder(Protocol):
    """Computes a decoding step. Rows are always numbered 0 .. num_rows - 1; removing one moves the last into its place.

    Implemented by `paged` (CPU; reads keys that many rows share once for all), `invariant` (batch-invariant mode, and
    CPUs without numba) and `fallback` (transformers' own attention). On a GPU, `gpu.decoder` keeps rows on the device
    for several tokens instead.
    """

    num_rows: int

    def add(self, segment: Segment) -> int:
        """Add a row that appends its tokens to `segment`, as no other row may; returns the row's number."""
        ...

    def remove(self, row: int) -> None:
        """Drop a row, whose keys and values are then all in its segment; the last row takes its number."""
        ...

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Feed one token per row and store its keys and values; returns hidden states (num_rows, D)."""
        ...


class Batch:
    """The rows of a decoder, and the jobs that wait for rows."""

    extras = frozenset({*PENALTIES, "logit_bias", "top_logprobs"})
    """Fields of `ttc.core.ExtraSampling` that its draws support; grammars are added by the engine."""

    def __init__(
        self,
        body: Body,
        make_decoder: Callable[[Body], Decoder],
        limits: BatchLimits,
        on_token: Callable[[LiveDraw], None],
    ) -> None:
        """`on_token` is called for every draw that has just received a token, and may set its `ended`."""
        self._body, self._make_decoder, self._limits, self._on_token = body, make_decoder, limits, on_token
        self.rows: list[LiveDraw | PromptRow] = []
        self._leads: dict[Job, Segment] = {}  # where the leading row, or the first draw, appends
        self._pending: dict[tuple[str, tuple[int, ...]], Job] = {}  # not yet prefilled, in order of arrival
        self._open: list[Job] = []  # prefilled, with draws that still wait for a row
        self._table: Rows | None = None
        self._decoder = alone(lambda: make_decoder(body))
        self._max_tokens = max(limits.kv_bytes // body.dims.kv_bytes(body.dtype.itemsize), PAGE)
        self._max_rows = limits.max_batch
        self._newcomers: list[Job] = []  # being prefilled, or jobs of draws being started
        self._chunk = CHUNK  # prompt tokens computed at once
        self._successes = 0  # successful prefills since memory last ran out
        self._full_rows: int | None = None  # number of rows at which memory was too short for a prefill
        self.tree = PrefixTree(body.pool)
        self.tenants = Tenants(self.tree)

    @property
    def idle(self) -> bool:
        """Whether no work is left."""
        return not (self.rows or self._pending or self._open)

    def add(self, request: GenerateRequest) -> None:
        """Queue the draws of a request; equal prompts of a problem share one job."""
        if self.idle:  # limits set by an earlier shortage may no longer apply
            self._max_rows, self._chunk, self._full_rows = self._limits.max_batch, CHUNK, None
        if request.path:
            self.tenants.continues(request.problem_id)
        draws = [LiveDraw(request, d, key) for d, key in zip(request.draws, request.keys, strict=True)]
        if request.make_guide is not None:
            for draw in draws:
                draw.guide = request.make_guide()
        for draw in draws:
            draw.penalty = _penalty(draw)
        self._wait(request.problem_id, request.ids, draws)

    def _wait(self, problem_id: str, ids: tuple[int, ...], draws: Sequence[LiveDraw]) -> None:
        job = self._pending.get((problem_id, ids))
        if job is None:
            job = self._pending[problem_id, ids] = Job(ids, self.tenants.tenant(problem_id))
        for draw in draws:
            draw.job = job
        job.waiting += draws

    def tick(self) -> None:
        """One step: prefill prompts for which there is room, decode one token per row, start draws on free rows."""
        self._admit()
        if self.rows:
            self._body.pool.return_memory(self._max_tokens)
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
                draw.computed += job.charge()
                job.waiting.remove(draw)
                dropped.append(draw)
            if not job.waiting:
                self._pending.pop((job.tenant.problem_id, job.ids), None)
        return dropped

    def shrink(self) -> bool:
        """Requeue all rows and halve the row limit until the batch is idle; returns False when there was only one row.

        Called when memory has run out within a step. The tokens a draw has sampled are kept, and its next token uses
        the same random number; its keys and values are found in the cache again unless they have been evicted.
        """
        num = min(self._max_rows, len(self.rows) + len(self._newcomers))
        if num <= 1:
            return False
        self._max_rows = num // 2
        self._requeue()
        return True

    def stuck(self) -> list[GenerateRequest]:
        """Requeue the one sequence that does not fit into memory; returns its requests, or nothing where none ran."""
        jobs = {*self._newcomers, *(row.job for row in self.rows)}
        own = {row.request for row in self.rows if isinstance(row, LiveDraw)}
        self._requeue()
        return list(own or {draw.request for job in jobs for draw in job.waiting})

    def _requeue(self) -> None:
        """Requeue all rows."""
        rows, self.rows, self._table, self._newcomers = self.rows, [], None, []
        for row in rows:
            row.job.live -= isinstance(row, LiveDraw)
            row.job.tenant.rows -= isinstance(row, LiveDraw)
            if isinstance(row, LiveDraw) and not row.ended:
                self._wait(row.request.problem_id, (*row.request.ids, *row.ids), [row])
                row.segment = None
            elif isinstance(row, PromptRow):
                self._pending.setdefault((row.job.tenant.problem_id, row.job.ids), row.job)
        self._leads = {job: self._body.pool.segment(job.segment) for job in self._open}
        self._renew()

    def clear(self) -> list[LiveDraw]:
        """Start from an empty state after a failure; returns the draws that had not ended."""
        draws = [row for row in self.rows if isinstance(row, LiveDraw) and not row.ended]
        jobs = {id(job): job for job in [*self._pending.values(), *self._open, *(row.job for row in self.rows)]}
        for job in jobs.values():
            draws += job.waiting
            job.tenant.rows = 0
        for draw in draws:
            draw.computed += draw.job.charge()
        self.rows.clear()
        self._leads.clear()
        self._pending.clear()
        self._open, self._table, self._newcomers = [], None, []
        self._renew()
        return draws

    def forget(self) -> None:
        """Drop all cached keys and values, since the weights have changed. Only while idle."""
        self.tenants.clear()
        self.tree.clear()
        self._renew()

    def _renew(self) -> None:
        """Make a new decoder without rows."""
        self._decoder = self._make_decoder(self._body)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _reserved(self) -> int:
        """Tokens that the rows may still add, rounded up to pages."""
        shared = len({id(row.job) for row in self.rows}) * PAGE
        states = self._body.pool.state_tokens * len(self.rows)
        return sum([row.reserve for row in self.rows]) + PAGE * len(self.rows) + shared + states

    def _fits(self, tokens: int, alone: bool) -> bool:
        """Whether `tokens` fit beside what is held, after evicting what is not needed.

        Some sequence must always run: one that would run `alone` overrides pins, and runs even if it is too large.
        """
        goal = self._max_tokens - tokens
        while not self.tree.evict(goal):
            if not alone or not self.tenants.relieve():
                return alone
        return True

    # -- a tick ------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Prefill the oldest prompts for which there is room, and give each a leading row."""
        if not self._pending or (self._full_rows is not None and len(self.rows) >= self._full_rows):
            return
        num_rows, busy = len(self.rows), {job.tenant for job in self._open} | {row.job.tenant for row in self.rows}
        queued = sum(len(job.waiting) for job in self._open)
        admitted: list[Job] = []
        tokens = self._reserved()
        # Problems that have started come first. Within that, in order of arrival: the first prompt that does not fit
        # blocks all behind it, so that smaller ones cannot starve a larger one.
        for job in sorted(self._pending.values(), key=lambda job: (not job.tenant.started, job.tenant.number)):
            own = len(job.ids) - self.tree.length(job.ids) + max(draw.reserve for draw in job.waiting)
            own = self.tenants.need(job.tenant, own + 2 * self._body.pool.slack)
            alone = not (self.rows or self._open or admitted)
            if num_rows >= self._max_rows:
                break
            if job.tenant in busy and num_rows + queued >= self._max_rows:
                continue  # its queued draws fill the rows: leave room for problems that have none
            if not self._fits(tokens + own + self.tenants.expected(job.tenant), alone):
                break
            tokens += own
            num_rows, queued = num_rows + 1, queued + len(job.waiting) - 1
            busy.add(job.tenant)
            admitted.append(job)
        for job in admitted:
            self.tree.join(job.ids[:-1])
        for job in self._compute(admitted):
            del self._pending[job.tenant.problem_id, job.ids]
            if job.logits is None:
                self._lead(job)
            else:
                # so that nothing is appended to the prompt's own segment
                self._leads[job] = self._body.pool.segment(job.segment)
                self._open.append(job)

    def _compute(self, jobs: list[Job]) -> list[Job]:
        """Prefill; when memory runs out, halve the chunk size, or at its minimum wait until a row has ended."""
        self._newcomers, self._full_rows = jobs, None
        try:
            with memory_errors():
                ready = advance(jobs, self._body, self.tree, self._chunk)
            self._successes += bool(jobs)
            if self._successes >= _SUCCESSES and self._chunk < CHUNK:
                self._chunk, self._successes = 2 * self._chunk, 0
        except MemoryError:
            self._successes = 0
            if self._chunk > PAGE:
                self._chunk //= 2
            elif self.rows or self._open:
                self._full_rows = max(len(self.rows), 1)
            else:
                raise
            ready = []
        self._newcomers = []
        return ready

    def _lead(self, job: Job) -> None:
        """Give a prompt whose last token is still to be computed a leading row, which feeds that token."""
        self._leads[job] = self._body.pool.segment(job.segment)
        self._decoder.add(self._leads[job])
        self.rows.append(PromptRow(job))
        self._table = None

    def _step(self) -> None:
        """Decode one token for every row; then turn leading rows into open jobs."""
        rows, decoder = self.rows, self._decoder
        hidden = decoder.step([row.feed for row in rows])  # (rows, hidden size)
        logits = self._body.logits(hidden)  # (rows, vocab)
        leads = [(i, row.job) for i, row in enumerate(rows) if isinstance(row, PromptRow)]
        if len(leads) < len(rows):
            live = [i for i, row in enumerate(rows) if not isinstance(row, PromptRow)]
            draws = [row for row in rows if not isinstance(row, PromptRow)]
            if self._table is None:
                self._table = _table(draws)
            live_logits = logits if not leads else logits[torch.tensor(live, device=logits.device)]
            result = sample(live_logits, self._table)
            # Randomness is keyed by draw and token position, so it does not depend on which other rows share the batch.
            np.add(self._table.positions, np.uint64(1), out=self._table.positions)
            self._take(draws, result)
        for i, job in leads:
            job.logits = logits[i].clone()  # (vocab,)
            job.computed += 1
            self._open.append(job)
        for i in range(len(rows) - 1, -1, -1):  # backwards, since the last row moves into a freed one
            row = rows[i]
            if isinstance(row, PromptRow) or row.ended:
                self._drop(i)

    def _launch(self) -> None:
        """Start waiting draws of open jobs while rows are free."""
        if not self._open:
            return
        starting = self._starting()
        if starting:
            self._begin(starting)
        opened, self._open = self._open, [job for job in self._open if job.waiting]
        for job in opened:
            self._release(job)

    def _begin(self, starting: Sequence[LiveDraw]) -> None:
        """Sample first tokens, and give a row to every draw that continues."""
        self._newcomers = [draw.job for draw in starting]
        # (draws, vocab): all draws of a prompt sample their first token from the same logits.
        logits = torch.stack([draw.job.logits for draw in starting if draw.job.logits is not None])
        result = sample(logits, _table(starting))
        # Draws leave the queue only now, so that an exception above loses none.
        self._newcomers = []
        for draw in starting:
            self._dequeue(draw)
        self._take(starting, result)
        for draw in starting:
            if not draw.ended:
                # The lead is kept while draws wait, so that the prefix tree does not append to the prompt's segment.
                lead = None if draw.job.waiting else self._leads.pop(draw.job, None)
                draw.segment = lead or self._body.pool.segment(draw.job.segment)
                self._decoder.add(draw.segment)
                self._add_row(draw)
        self._table = None

    @staticmethod
    def _dequeue(draw: LiveDraw) -> None:
        """Take a draw off the queue, and charge it for the prompt."""
        draw.job.waiting.remove(draw)
        draw.computed += draw.job.charge()
        draw.prompt += len(draw.job.ids)

    def _add_row(self, draw: LiveDraw) -> None:
        self.rows.append(draw)
        draw.job.live += 1
        draw.job.tenant.rows += 1

    def _starting(self) -> list[LiveDraw]:
        """The draws that start now: those of problems with few rows first, each only if all it may add fits."""
        starting: list[LiveDraw] = []
        busy = {job.tenant for job in self._open} | {row.job.tenant for row in self.rows}
        free = self._max_rows - len(self.rows)
        if free > 1 and any(job.tenant not in busy for job in self._pending.values()):
            free -= 1  # reserved for the prompt of a problem that has no row yet
        rows = {job.tenant: job.tenant.rows for job in self._open}
        tokens = self._reserved()
        lines = {job: iter(list(job.waiting)) for job in self._open}
        heads = {job: draw for job, line in lines.items() if (draw := next(line, None)) is not None}
        while heads:
            job = min(heads, key=lambda job: rows[job.tenant])
            tokens += heads[job].reserve + self._body.pool.slack
            alone = not (self.rows or starting)
            if len(starting) >= free or not self._fits(tokens, alone):
                break
            starting.append(heads.pop(job))
            rows[job.tenant] += 1
            if (following := next(lines[job], None)) is not None:
                heads[job] = following
        return starting

    def _take(self, draws: Sequence[LiveDraw], result: SampledTokens) -> None:
        """Append one sampled token to every draw, and call `on_token`."""
        if result.logprobs is not None and result.certainty is not None:
            for draw, logprob, certainty in zip(
                draws, result.logprobs.tolist(), result.certainty.tolist(), strict=True
            ):
                draw.logprobs.append(logprob)
                draw.certainty.append(certainty)
        for draw, top in zip(draws, result.tops, strict=False):
            draw.tops.append(top)
        for draw, token in zip(draws, result.tokens.tolist(), strict=True):
            draw.take(token)
            self._on_token(draw)

    def _drop(self, row: int) -> None:
        """Free a row; a draw's keys and values go to the prefix cache."""
        entry = self.rows[row]
        self._decoder.remove(row)
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last
        self._table = None
        if isinstance(entry, PromptRow):
            self._close_lead(entry.job)
        else:
            self._leave_row(entry)

    def _close_lead(self, job: Job) -> None:
        """Store what the leading row has computed; a single draw continues in the same segment."""
        job.segment = self._leads[job]
        if len(job.waiting) != 1:
            job.segment = self.tree.absorb(job.ids, self._leads.pop(job))
            self._leads[job] = self._body.pool.segment(job.segment)

    def _leave_row(self, entry: LiveDraw) -> None:
        job = entry.job
        job.live -= 1
        job.tenant.rows -= 1
        if entry.segment is not None and entry.segment.length:
            ids = (*entry.request.ids, *entry.ids[:-1])
            end = self.tree.insert(ids, entry.segment)
            if entry.ended and not entry.final:
                size = len(entry.ids) + self._body.pool.state_tokens
                self.tenants.keep(job.tenant, (*entry.request.path, entry.number), end, size)
        entry.segment = None
        self._release(job)

    def _release(self, job: Job) -> None:
        """Free the job's keys and values once no draw runs on it or waits for it."""
        if not job.live and not job.waiting:
            lead = self._leads.pop(job, None)
            if lead is not None:
                self.tree.absorb(job.ids, lead)
            job.segment = job.logits = None


def _table(draws: Sequence[LiveDraw]) -> Rows:
    """The sampler's settings for `draws`, whose next token is at position + 1 of the newest."""
    settings = [draw.request.sampling for draw in draws]
    penalties = tuple(draw.penalty for draw in draws)
    return Rows(
        temperature=np.array([heat(s.temperature) for s in settings], np.float32),
        top_p=np.array([s.top_p for s in settings], np.float32),
        top_k=np.array([s.top_k or 0 for s in settings], np.int64),
        min_p=np.array([s.min_p for s in settings], np.float32),
        keys=np.array([draw.key for draw in draws], np.uint64),
        positions=np.array([draw.position + 1 for draw in draws], np.uint64),
        wants_logprobs=any(s.logprobs for s in settings),
        num_top=tuple(map(num_top, settings)) if any(map(num_top, settings)) else (),
        penalties=penalties if any(penalties) else (),
        guides=tuple(draw.guide for draw in draws) if any(draw.guide is not None for draw in draws) else (),
    )


def _penalty(draw: LiveDraw) -> Penalty | None:
    """What changes the logits of the draw's next token; None where nothing does."""
    sampling, factor = draw.request.sampling, draw.request.sampling.repetition_penalty
    if isinstance(sampling, ExtraSampling):
        once, each, bias = sampling.presence_penalty, sampling.frequency_penalty, sampling.logit_bias
    else:
        once, each, bias = 0.0, 0.0, ()
    if (factor, once, each, bias) == (1, 0, 0, ()):
        return None
    return Penalty(draw.request.ids, draw.ids, factor, once, each, bias)
