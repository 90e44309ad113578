"""Who may be replaced, and when that is too often."""

import pytest

from birl.config import ConfigError
from birl.errors import EnvError, NonFiniteError
from birl.workers import faults
from birl.workers.faults import FAULTS_IN_A_ROW, Failure, Fault, FaultLog, name_environments

KILLED = Failure("its process was ended by SIGKILL")
RAISED = Failure("ZeroDivisionError: mass is zero", "Traceback ...")


def fault(index: int = 0) -> Fault:
    return Fault(f"actor-learner {index}", index, 12_345, 678, "it hangs")


def test_a_fault_is_told_with_what_failed_when_where_and_why():
    log = FaultLog(2)
    with pytest.warns(
        UserWarning, match=r"actor-learner 1 restarted in a new process at step 12,345: it hangs \(in process 678\)"
    ):
        log.report(fault(1), RAISED, False, started=True)
    assert log.faults == [fault(1)]


def test_who_raises_before_it_has_started_is_not_replaced():
    with pytest.raises(RuntimeError, match="actor-learner 0 cannot start: ZeroDivisionError: mass is zero\nTraceback"):
        FaultLog(1).report(fault(), RAISED, False, started=False)


def test_who_is_killed_before_it_has_started_is_replaced():
    with pytest.warns(UserWarning, match="restarted in a new process"):
        FaultLog(1).report(fault(), KILLED, False, started=False)


@pytest.mark.filterwarnings("ignore")
def test_more_than_ten_in_a_row_are_too_many_but_an_episodes_end_between_begins_a_new_row():
    log = FaultLog(1)
    for _ in range(3 * FAULTS_IN_A_ROW):
        log.report(fault(), KILLED, episode_ended=True, started=True)
    for _ in range(FAULTS_IN_A_ROW - 1):
        log.report(fault(), KILLED, episode_ended=False, started=True)
    with pytest.raises(
        RuntimeError, match=f"failed {FAULTS_IN_A_ROW + 1} times in a row: its process was ended by SIGKILL"
    ):
        log.report(fault(), RAISED, episode_ended=False, started=True)


def test_wrong_settings_numbers_that_are_not_finite_and_broken_rules_are_told_as_such():
    with pytest.raises(ConfigError, match="mass 0"):
        FaultLog(1).report(fault(), Failure("mass 0", "", configuration=True), False, started=True)
    with pytest.raises(NonFiniteError, match="a NaN"):
        FaultLog(1).report(fault(), Failure("a NaN", "", not_finite=True), False, started=True)
    with pytest.raises(EnvError, match="a flag"):
        FaultLog(1).report(fault(), Failure("a flag", "", invalid=True), False, started=True)


def test_when_the_reason_changes_the_message_has_the_first_and_the_last(monkeypatch):
    monkeypatch.setattr(faults, "FAULTS_IN_A_ROW", 1)
    log = FaultLog(1)
    with pytest.warns(UserWarning, match="it hangs"):
        log.report(fault(), RAISED, episode_ended=False)
    with pytest.raises(RuntimeError, match=r"failed 2 times in a row: .* mass is zero; the last time: .* SIGKILL\nTra"):
        log.report(fault(), KILLED, episode_ended=False)


def test_a_fault_of_environments_says_that_they_began_new_episodes():
    fault = Fault(name_environments(range(4, 8)), 1, 5, 0, "it hangs", "10.0.0.2", "began new episodes")
    in_words = (
        "environments 4 to 7 began new episodes in a new process at step 5: it hangs (in its process on 10.0.0.2)"
    )
    assert str(fault) == in_words
    assert name_environments(range(3, 4)) == "environment 3"
