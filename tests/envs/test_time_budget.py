"""A check's time is CPU time, and never more than a limited wall time."""

import time

import pytest

from birl.envs.check.trials import TimeBudget


@pytest.mark.parametrize(
    ("cpu", "wall", "left"), [(4.9, 30.0, True), (5.1, 5.1, False), (0.0, 59.0, True), (0.0, 61.0, False)]
)
def test_cpu_time_counts_and_wall_time_up_to_twelve_times_as_much(cpu, wall, left, monkeypatch):
    clocks = {"process_time": 100.0, "monotonic": 1000.0}
    for name in clocks:
        monkeypatch.setattr(time, name, lambda name=name: clocks[name])
    budget = TimeBudget(5.0)
    clocks["process_time"] += cpu
    clocks["monotonic"] += wall
    assert budget.is_left() == left
