"""The numbers of the talk's example, against two independent solvers (DESIGN plan page)."""

import pytest

from optimizer import Profile, plan
from tests.optimizer.fleets import KEY, RTT, flat_profile, talk


def test_convex_profiles_give_the_optimum_of_independent_solvers():
    result = plan(talk())
    loads = [result.engines[name].load_rps for name in "abc"]
    assert loads == pytest.approx([89.304, 89.357, 71.340], abs=6e-4)
    assert result.shares["B"][KEY]["c"] == pytest.approx(0.2554, abs=1e-4)
    assert result.shares["A"][KEY]["c"] == pytest.approx(0.0077, abs=1e-4)
    assert result.objective_ms == pytest.approx(817.096, abs=1e-3)
    assert result.e2e_ms == pytest.approx(817.096, abs=1e-3)
    assert result.gap < 1e-3
    assert result.exact


def test_a_measured_table_of_the_same_curve_gives_the_same_optimum():
    def table(capacity: float) -> Profile:
        loads = [capacity * i / 1000 for i in range(1000)]
        return Profile.from_table([(x, 120 + 80 * x / (capacity - x), 0.0) for x in loads], capacity)

    result = plan(talk(table, max_utilization=0.999))
    assert result.objective_ms == pytest.approx(817.096, rel=1e-4)


def test_flat_profiles_send_the_overflow_to_the_nearest_free_capacity():
    result = plan(talk(flat_profile, max_utilization=1.0))
    assert result.shares["B"][KEY]["a"] * 120 == pytest.approx(10, abs=1e-3)
    assert result.shares["B"][KEY]["c"] * 120 == pytest.approx(10, abs=1e-3)


def test_flat_profiles_send_exactly_twenty_to_c_when_c_is_nearer():
    rtt = {
        "A": {**RTT["A"], "b": 237.0},
        "B": {"a": 237.0, "b": 1.0, "c": 98.0},
        "C": {**RTT["C"], "b": 98.0},
    }
    result = plan(talk(flat_profile, max_utilization=1.0, rtt=rtt))
    assert result.shares["B"][KEY]["c"] * 120 == pytest.approx(20, abs=1e-3)
    assert "a" not in result.shares["B"][KEY]
