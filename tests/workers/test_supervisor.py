"""Seeds of child processes. The rest of the supervisor is tested with the environment workers."""

from birl.workers.supervisor import child_seed


def test_the_first_child_has_the_runs_seed_and_no_two_starts_have_the_same():
    assert child_seed(7, 0) == child_seed(7, 0, 0, 0) == 7
    starts = [child_seed(7, number, *restart) for number in range(3) for restart in ((), (5, 0), (5, 1), (6, 0))]
    assert len(set(starts)) == 12
