"""Two ledgers side by side: what we counted, and what the server says it counted.

Where ids come back, ours are counted and the server's only compared: a difference is recorded and warned of once, never
taken over silently. Where they do not, the server's counts are all there is. A draw that was cut off reports nothing;
its streamed tokens are `overrun` on our side, and the server may have decoded a few more. Cost: nothing.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from ttc.core import Usage, UsageSink
from ttc.engines.openai.reply import ServerUsage

__all__ = ["Ledger", "Reconciliation"]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """How the server's counts compare with ours, over finished draws.

    `agreed` + `differed` + `unreported` + `taken` is the number of finished draws: both counts known and equal, or not;
    no usage from the server; only the server's count known. The token sums run over the draws that were compared.
    """

    agreed: int = 0
    differed: int = 0
    unreported: int = 0
    taken: int = 0
    our_prompt: int = 0
    our_generated: int = 0
    server_prompt: int = 0
    server_generated: int = 0


class Ledger:
    """The totals of one engine."""

    def __init__(self, model: str) -> None:
        """Start at zero; `model` is for the warning."""
        self._model = model
        self.totals = Usage()
        self.compared = Reconciliation()

    def report(self, usage: Usage, sink: UsageSink) -> None:
        """Charge one draw, here and to its session."""
        self.totals += usage
        sink(usage)

    def compare(self, prompt: int | None, streamed: int | None, server: ServerUsage) -> None:
        """Compare one finished draw: context and received tokens by our count (None: unknown) with the server's."""
        if server.prompt is None or server.generated is None:
            if prompt is None and not self.compared.unreported:
                self._warn("a finished draw came without usage; its tokens are counted by chunks, which is too few")
            self.compared = replace(self.compared, unreported=self.compared.unreported + 1)
            return
        if prompt is None or streamed is None:
            self.compared = replace(self.compared, taken=self.compared.taken + 1)
            return
        equal = (prompt, streamed) == (server.prompt, server.generated)
        before = self.compared
        self.compared = replace(
            before,
            agreed=before.agreed + equal,
            differed=before.differed + (not equal),
            our_prompt=before.our_prompt + prompt,
            our_generated=before.our_generated + streamed,
            server_prompt=before.server_prompt + server.prompt,
            server_generated=before.server_generated + server.generated,
        )
        if not equal and not before.differed:
            self._warn(
                f"the server counts {server.prompt} prompt and {server.generated} generated tokens, we count {prompt} "
                f"and {streamed}; the ledger keeps ours"
            )

    def _warn(self, text: str) -> None:
        warnings.warn(f"{self._model}: {text} (engine.reconciliation() has the totals)", RuntimeWarning, stacklevel=3)
