"""Which problems may use the memory of keys and values, and what they keep of it between their steps.

A search returns to its paths: unfinished draws are pinned until it abandons the path (`prune`) or ends (`release`). A
new problem starts only where its own need and the possible growth of earlier searches fit together, so a few searches
run to their end instead of many that evict each other; the estimate of a problem's need is the most that any problem
has held so far. Requests without a problem hold nothing. When memory is short all the same, the problem that has been
idle longest loses its pins and has to recompute its paths; no request fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from ttc.core import Path
from ttc.engines.embedded.core.cache import PrefixEntry, PrefixTree

_SWEEP = 1024
"""Requests between two sweeps for problems that were never released."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tenant:
    """One problem: its place in the order of arrival, its running rows, and the paths of its unfinished draws.

    It `searches` once it has continued a path: only then are its paths pinned, so that a problem that never returns
    holds nothing.
    """

    problem_id: str
    number: int
    rows: int = 0
    used: int = 0
    searches: bool = False
    paths: dict[Path, tuple[PrefixEntry, int]] = field(default_factory=dict)
    """The end of each path in the prefix tree, and the tokens that its last step holds, a state among them."""

    @property
    def started(self) -> bool:
        """Whether it holds anything."""
        return bool(self.rows or (self.searches and self.paths))

    @property
    def held(self) -> int:
        """Tokens of its pinned steps."""
        return sum(length for _, length in self.paths.values()) if self.searches else 0


class Tenants:
    """All problems with requests that have not been released."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._tenants: dict[str, Tenant] = {}
        # Unreleased tenants that are in the dict above or have a waiting prompt. One problem must have one tenant only:
        # with two, pins of one would never be removed.
        self._unreleased: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
        self._count = 0
        self._clock = 0
        self._largest = 0

    def tenant(self, problem_id: str) -> Tenant:
        """The tenant of a problem; a new one for every request without a problem."""
        self._clock += 1
        if self._clock % _SWEEP == 0:  # drop tenants that hold nothing, made no request lately and were never released
            recent = self._clock - _SWEEP
            self._tenants = {name: t for name, t in self._tenants.items() if t.started or t.used > recent}
        tenant = self._unreleased.get(problem_id)
        if tenant is None:
            self._count += 1
            tenant = Tenant(problem_id, self._count)
        if problem_id:
            self._tenants[problem_id] = self._unreleased[problem_id] = tenant
        tenant.used = self._clock
        return tenant

    def need(self, tenant: Tenant, tokens: int) -> int:
        """Tokens to reserve for a request: for a problem's first, at least the most that any search has held."""
        return tokens if tenant.started or not tenant.problem_id else max(tokens, self._largest)

    def expected(self, newcomer: Tenant) -> int:
        """Tokens that must stay free beside a newcomer, since earlier searches may still need them."""
        if newcomer.started:
            return 0
        searches = (tenant for tenant in self._tenants.values() if tenant.searches and tenant.started)
        return sum(max(self._largest - tenant.held, 0) for tenant in searches)

    def continues(self, problem_id: str) -> None:
        """Mark that a problem continues its own draws: from now on they are pinned."""
        tenant = self.tenant(problem_id)
        if tenant.searches or not problem_id:
            return
        tenant.searches = True
        tenant.paths = {path: pair for path, pair in tenant.paths.items() if self._tree.pin(pair[0])}
        self._largest = max(self._largest, tenant.held)

    def keep(self, tenant: Tenant, path: Path, entry: PrefixEntry, length: int) -> None:
        """Record a path that ends in `entry`, whose last step holds `length` tokens; ignored for a released problem."""
        if self._unreleased.get(tenant.problem_id) is not tenant:
            return
        self._tenants[tenant.problem_id] = tenant
        self._drop(tenant, path, forget=False)
        if not tenant.searches or self._tree.pin(entry):
            tenant.paths[path] = entry, length
            self._largest = max(self._largest, tenant.held)

    def prune(self, problem_id: str, path: Path) -> None:
        """Drop what a problem has drawn at `path` and below."""
        tenant = self._unreleased.get(problem_id)
        if tenant is not None:
            for below in [drawn for drawn in tenant.paths if drawn[: len(path)] == path]:
                self._drop(tenant, below, forget=True)

    def release(self, problem_id: str) -> None:
        """End a problem; its draws may be evicted like anything else."""
        tenant = self._unreleased.pop(problem_id, None)
        self._tenants.pop(problem_id, None)  # the last reference, unless a prompt of the problem waits
        if tenant is not None:
            self._unpin(tenant)

    def relieve(self) -> bool:
        """Remove the pins of the problem that has been idle longest; False when no problem has any."""
        holders = [tenant for tenant in self._tenants.values() if tenant.searches and tenant.paths]
        if not holders:
            return False
        self._unpin(min(holders, key=lambda tenant: (tenant.rows > 0, tenant.used)))
        return True

    def clear(self) -> None:
        """Drop all pins, since the cache was cleared."""
        for tenant in self._tenants.values():
            tenant.paths.clear()

    def _unpin(self, tenant: Tenant) -> None:
        for path in list(tenant.paths):
            self._drop(tenant, path, forget=False)

    def _drop(self, tenant: Tenant, path: Path, forget: bool) -> None:
        pair = tenant.paths.pop(path, None)
        if pair is not None and tenant.searches:
            self._tree.unpin(pair[0])
        if pair is not None and forget:
            self._tree.forget(pair[0])
