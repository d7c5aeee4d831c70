"""Which problems may use the memory of keys and values, and what they keep of it between their steps.

A search comes back for its paths: what it has drawn and not finished is pinned until it says that it has left a path
(`prune`) or is done (`release`). A new problem starts only where what those before it may still come to need fits
beside its own need, so a few searches end instead of many that push each other out; what a problem may need is the most
that any has held so far. Requests without a problem hold nothing. When memory is short all the same, the problem that
has been idle longest loses its pins, and pays by computing its paths again: nobody fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from ttc.core import Path
from ttc.engines.embedded.core.cache import PrefixEntry, PrefixTree

__all__ = ["Tenant", "Tenants"]


_SWEEP = 1024
"""Requests between two looks for problems that nobody has released."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tenant:
    """One problem: its place in the order of arrival, its live rows, and the paths that it has drawn and not finished.

    Once it has continued a path, it `searches`: only then are its paths pinned, so that nothing stays for problems
    which are never heard of again.
    """

    problem_id: str
    number: int
    rows: int = 0
    used: int = 0
    searches: bool = False
    paths: dict[Path, tuple[PrefixEntry, int]] = field(default_factory=dict)
    """The end of each path in the prefix tree, and the tokens of its last step."""

    @property
    def started(self) -> bool:
        """Whether it holds anything."""
        return bool(self.rows or (self.searches and self.paths))

    @property
    def held(self) -> int:
        """Tokens of the steps that it has pinned."""
        return sum(length for _, length in self.paths.values()) if self.searches else 0


class Tenants:
    """All problems that have asked and are not done."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._tenants: dict[str, Tenant] = {}
        # Those that nobody has released, as long as a prompt of theirs waits or they are in the dict above: a problem
        # has one tenant, or what one of two pins the other would never let go.
        self._unreleased: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
        self._count = 0
        self._clock = 0
        self._largest = 0

    def tenant(self, problem_id: str) -> Tenant:
        """The tenant of a problem; one of its own for every request that names none."""
        self._clock += 1
        if self._clock % _SWEEP == 0:  # those who neither hold anything nor have asked for long, and never said goodbye
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
        """What a request of `tokens` is to be given: where it is its problem's first, what any search has held."""
        return tokens if tenant.started or not tenant.problem_id else max(tokens, self._largest)

    def expected(self, newcomer: Tenant) -> int:
        """What must stay free beside a newcomer: tokens that the searches before it may still come to need."""
        if newcomer.started:
            return 0
        searches = (tenant for tenant in self._tenants.values() if tenant.searches and tenant.started)
        return sum(max(self._largest - tenant.held, 0) for tenant in searches)

    def continues(self, problem_id: str) -> None:
        """Note that a problem comes back for what it has drawn: all of that is pinned from now on."""
        tenant = self.tenant(problem_id)
        if tenant.searches or not problem_id:
            return
        tenant.searches = True
        tenant.paths = {path: pair for path, pair in tenant.paths.items() if self._tree.pin(pair[0])}
        self._largest = max(self._largest, tenant.held)

    def keep(self, tenant: Tenant, path: Path, entry: PrefixEntry, length: int) -> None:
        """Note a path that ends in `entry`, whose last step is of `length` tokens; of a released problem nothing."""
        if self._unreleased.get(tenant.problem_id) is not tenant:
            return
        self._tenants[tenant.problem_id] = tenant
        self._drop(tenant, path, forget=False)
        if not tenant.searches or self._tree.pin(entry):
            tenant.paths[path] = entry, length
            self._largest = max(self._largest, tenant.held)

    def prune(self, problem_id: str, path: Path) -> None:
        """Forget what a problem has drawn at `path` and below."""
        tenant = self._unreleased.get(problem_id)
        if tenant is not None:
            for below in [drawn for drawn in tenant.paths if drawn[: len(path)] == path]:
                self._drop(tenant, below, forget=True)

    def release(self, problem_id: str) -> None:
        """Let go of a problem that is done; what it has drawn may be forgotten like all else."""
        tenant = self._unreleased.pop(problem_id, None)
        self._tenants.pop(problem_id, None)  # the last reference where no prompt of its waits
        if tenant is not None:
            self._unpin(tenant)

    def relieve(self) -> bool:
        """Take the pins of the problem that has been idle longest; False when nobody has any."""
        holders = [tenant for tenant in self._tenants.values() if tenant.searches and tenant.paths]
        if not holders:
            return False
        self._unpin(min(holders, key=lambda tenant: (tenant.rows > 0, tenant.used)))
        return True

    def clear(self) -> None:
        """Drop every pin: the cache is another now."""
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
