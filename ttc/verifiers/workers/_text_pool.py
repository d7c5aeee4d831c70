"""The killable worker for patterns and schemas (`_text_worker`), and what its failures mean as verdicts."""

from __future__ import annotations

from collections.abc import Mapping

from ttc.core import Status, Verdict
from ttc.verifiers.workers.pool import Pool, Reply

MEMORY_MB = 512
_STATUSES: Mapping[str, Status] = {"timeout": "timeout", "limit": "limit"}


def text_pool(workers: int, timeout_s: float) -> Pool:
    """A pool of that worker; nothing starts before the first request."""
    program = ("-m", "ttc.verifiers.workers.text_worker")
    return Pool(workers=workers, timeout_s=timeout_s, memory_mb=MEMORY_MB, program=program)


def without_reply(reply: Reply) -> Verdict:
    """The verdict where a worker gave no result: a limit, a timeout or an error, with its reason."""
    return Verdict(_STATUSES.get(reply.status, "error"), reason=str(reply.data.get("reason") or reply.status))
