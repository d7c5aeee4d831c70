"""Which problems may use the memory of keys and values, and what they keep of it between their steps.

A search comes back for its paths: what it has drawn and not finished is pinned until it says that it has left a path
(`prune`) or is done (`release`). A new problem starts only where what those before it may still come to need fits
beside its own need, so a few searches end instead of many that push each other out; what a problem may need is the most
that any has held so far. Requests without a problem hold nothing. When memory is short all the same, the problem that
has been idle longest loses its pins, and pays by computing its paths again: nobody fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ttc.core import Path
from ttc.engines.embedded.cache import Entry, PrefixTree

__all__ = ["Tenant", "Tenants"]


@dataclass(slots=True, eq=False)
class Tenant:
    """One problem: its place in the order of arrival, its live rows, and the paths it may come back for."""

    problem_id: str
    number: int
    rows: int = 0
    used: int = 0
    pins: dict[Path, tuple[Entry, int]] = field(default_factory=dict)  # the end of a path, and tokens of its last step

    @property
    def started(self) -> bool:
        """Whether it holds anything."""
        return bool(self.rows or self.pins)

    @property
    def held(self) -> int:
        """Tokens of the steps that it has pinned."""
        return sum(length for _, length in self.pins.values())


class Tenants:
    """All problems that have asked and are not done."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._tenants: dict[str, Tenant] = {}
        self._count = 0
        self._clock = 0
        self._largest = 0

    def tenant(self, problem_id: str) -> Tenant:
        """The tenant of a problem; one of its own for every request that names none."""
        self._clock += 1
        tenant = self._tenants.get(problem_id)
        if tenant is None:
            self._count += 1
            tenant = Tenant(problem_id, self._count)
            if problem_id:
                self._tenants[problem_id] = tenant
        tenant.used = self._clock
        return tenant

    def expected(self) -> int:
        """Tokens that the problems which have started may still come to need."""
        return sum(max(self._largest - tenant.held, 0) for tenant in self._tenants.values() if tenant.started)

    def need(self, tenant: Tenant, tokens: int) -> int:
        """What must be free for a request of `tokens`: more than that where it is the first of its problem."""
        return tokens if tenant.started else max(tokens, self._largest if tenant.problem_id else 0) + self.expected()

    def pin(self, tenant: Tenant, path: Path, ids: tuple[int, ...], length: int) -> None:
        """Keep the path that ends with `ids`, whose last step is of `length` tokens."""
        if not tenant.problem_id:
            return
        entry = self._tree.pin(ids)
        self._drop(tenant, path, forget=False)
        if entry is not None:
            tenant.pins[path] = entry, length
            self._largest = max(self._largest, tenant.held)

    def prune(self, problem_id: str, path: Path) -> None:
        """Forget what a problem has drawn at `path` and below."""
        tenant = self._tenants.get(problem_id)
        if tenant is not None:
            for below in [known for known in tenant.pins if known[: len(path)] == path]:
                self._drop(tenant, below, forget=True)

    def release(self, problem_id: str) -> None:
        """Let go of a problem that is done; what it has drawn may be forgotten like all else."""
        tenant = self._tenants.pop(problem_id, None)
        if tenant is not None:
            self._unpin(tenant)

    def relieve(self) -> bool:
        """Take the pins of the problem that has been idle longest; False when nobody has any."""
        holders = [tenant for tenant in self._tenants.values() if tenant.pins]
        if not holders:
            return False
        self._unpin(min(holders, key=lambda tenant: (tenant.rows > 0, tenant.used)))
        return True

    def clear(self) -> None:
        """Drop every pin: the cache is another now."""
        for tenant in self._tenants.values():
            tenant.pins.clear()

    def _unpin(self, tenant: Tenant) -> None:
        for path in list(tenant.pins):
            self._drop(tenant, path, forget=False)

    def _drop(self, tenant: Tenant, path: Path, forget: bool) -> None:
        pin = tenant.pins.pop(path, None)
        if pin is not None:
            self._tree.unpin(pin[0], forget)
