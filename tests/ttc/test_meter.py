"""The meter: leases never exceed the budget, in any order of settling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.core import Budget, Usage
from ttc.errors import BudgetExceeded, ConfigError
from ttc.session.meter import Lease, Meter, Request


@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 50), st.floats(0, 1)), max_size=20),
)
def test_leases_plus_spent_tokens_never_exceed_the_budget(budget: int, wants: list[tuple[int, int, float]]) -> None:
    meter = Meter(Budget(tokens=budget))
    open_leases: list[tuple[Lease, float]] = []
    for num_draws, max_tokens, share in wants:
        try:
            lease = meter.lease(Request(num_draws, max_tokens))
        except BudgetExceeded:
            for lease, used in open_leases:
                meter.add(Usage(generated=int(lease.num_draws * lease.max_tokens * used)))
                meter.settle(lease)
            open_leases = []
            continue
        assert 1 <= lease.num_draws <= num_draws and 1 <= lease.max_tokens <= max_tokens
        open_leases.append((lease, share))
        held = sum(held.num_draws * held.max_tokens for held, _ in open_leases)
        assert meter.usage.tokens + held <= budget


def test_a_tight_budget_grants_fewer_full_draws_rather_than_many_cut_ones() -> None:
    assert Meter(Budget(tokens=250)).lease(Request(16, 100)) == Lease(2, 100)
    assert Meter(Budget(tokens=70)).lease(Request(16, 100)) == Lease(1, 70, is_cut=True)


def test_shares_are_equal_and_charge_the_parent() -> None:
    parent = Meter(Budget(tokens=100))
    first, second = parent.share(2), parent.share(2)
    first.add(Usage(generated=50))
    with pytest.raises(BudgetExceeded, match="tokens"):
        first.lease(Request(1, 10))
    assert second.lease(Request(1, 80)) == Lease(1, 50, is_cut=True)
    assert parent.usage.generated == 50


@pytest.mark.parametrize("field", ["tokens", "flops", "seconds", "calls"])
def test_a_budget_of_zero_is_refused_by_name(field: str) -> None:
    with pytest.raises(ConfigError, match=f"budget.{field}"):
        Budget(**{field: 0})
