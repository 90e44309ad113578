"""Who may be replaced, and when that is too often."""

import pytest

from birl.config import ConfigError
from birl.errors import EnvError, NonFiniteError
from birl.workers.faults import FAULTS_IN_A_ROW, Fault, Faults
from birl.workers.process import Failure

KILLED = Failure("its process was ended by SIGKILL")
RAISED = Failure("ZeroDivisionError: mass is zero", "Traceback ...")


def fault(index: int = 0) -> Fault:
    return Fault("actor-learner", index, 12_345, 678, "it hangs")


def test_a_fault_is_told_with_what_failed_when_where_and_why():
    faults = Faults(2)
    with pytest.warns(
        UserWarning, match=r"actor-learner 1 goes on in a new process at step 12,345; in process 678: it hangs"
    ):
        faults.report(fault(1), RAISED, False, started=True)
    assert faults.all == [fault(1)]


def test_who_raises_before_it_has_started_is_not_replaced():
    with pytest.raises(RuntimeError, match="actor-learner 0 cannot start: ZeroDivisionError: mass is zero\nTraceback"):
        Faults(1).report(fault(), RAISED, False, started=False)


def test_who_is_killed_before_it_has_started_is_replaced():
    with pytest.warns(UserWarning, match="goes on in a new process"):
        Faults(1).report(fault(), KILLED, False, started=False)


@pytest.mark.filterwarnings("ignore")
def test_more_than_ten_in_a_row_are_too_many_but_an_episodes_end_between_begins_a_new_row():
    faults = Faults(1)
    for _ in range(3 * FAULTS_IN_A_ROW):
        faults.report(fault(), KILLED, episode_ended=True, started=True)
    for _ in range(FAULTS_IN_A_ROW - 1):
        faults.report(fault(), KILLED, episode_ended=False, started=True)
    with pytest.raises(
        RuntimeError, match=f"failed {FAULTS_IN_A_ROW + 1} times in a row: its process was ended by SIGKILL"
    ):
        faults.report(fault(), RAISED, episode_ended=False, started=True)


def test_wrong_settings_numbers_that_are_not_finite_and_broken_rules_are_told_as_such():
    with pytest.raises(ConfigError, match="mass 0"):
        Faults(1).report(fault(), Failure("mass 0", "", configuration=True), False, started=True)
    with pytest.raises(NonFiniteError, match="a NaN"):
        Faults(1).report(fault(), Failure("a NaN", "", not_finite=True), False, started=True)
    with pytest.raises(EnvError, match="a flag"):
        Faults(1).report(fault(), Failure("a flag", "", invalid=True), False, started=True)
