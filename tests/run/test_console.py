"""The console shows the right numbers, not too often, and restores the terminal."""

import errno
import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import numpy as np
import pytest

from birl.run.console import Console, Status, two_lines
from tests.run.processes import SECONDS

METRICS = {
    "episode/return": 195.5,
    "time/environment_share": 0.31,
    "time/policy_share": 0.22,
    "time/learning_share": 0.47,
}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(total_steps: int = 1000, start_steps: int = 0) -> tuple[Console, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return Console("ppo", "CartPole-v1", total_steps, start_steps, stream, clock), stream, clock


def test_in_a_file_10_seconds_give_5_lines_then_the_last_state_and_the_summary():
    console, stream, clock = plain()
    for step in range(80):
        clock.now = step / 8
        console.write(step, clock.now, METRICS)
    console.close()
    lines = stream.getvalue().splitlines()
    shown = [re.search(r"([\d,]+) / 1,000 steps", line) for line in lines]
    assert [match and match[1] for match in shown] == ["0", "16", "32", "48", "64", "79", None]


def test_in_a_file_there_is_no_control_character(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    console, stream, _ = plain()
    console.write(500, 1.0, METRICS)
    console.message("checkpoint at 500")
    console.close()
    assert re.fullmatch(r"[ -~\n]+", stream.getvalue())


def test_a_line_says_how_far_how_well_how_fast_and_where_the_time_goes():
    console, stream, clock = plain()
    console.write(100, 1.0, METRICS)
    clock.now = 4.0
    console.write(500, 5.0, METRICS)
    expected = "ppo CartPole-v1:  50%, 500 / 1,000 steps, 5.0 s left, return 195.5, 100 steps/s"
    assert stream.getvalue().splitlines()[-1] == f"{expected}, environment 31%, policy 22%, learning 47%"


def test_the_time_left_does_not_count_the_compiling_before_the_first_update():
    console, stream, clock = plain()
    clock.now = 60.0
    console.write(100, 60.0, {})
    clock.now = 62.0
    console.write(300, 62.0, {})
    assert "7.0 s left" in stream.getvalue()


def test_compiling_is_said_before_the_first_update_and_not_after_it():
    console, stream, _ = plain()
    console.compiling()
    assert stream.getvalue() == "ppo CartPole-v1:   0%, 0 / 1,000 steps, compiling\n"
    console.write(100, 1.0, METRICS)
    assert "return 195.5" in stream.getvalue().splitlines()[-1], "the first update is shown at once"
    console.compiling()
    assert stream.getvalue().count("compiling") == 1


def test_a_bar_says_that_an_evaluation_begins_before_its_first_step():
    stream, clock = Terminal(), Clock()
    console = Console("ppo", "CartPole-v1", 1000, 0, stream, clock)
    console.write(100, 1.0, METRICS)
    console.evaluating(0, 20, 0)
    assert "evaluating: 0 of 20 episodes" in stream.getvalue()
    console.close()
    closed = stream.getvalue()
    console.evaluating(0, 20, 0)
    assert stream.getvalue() == closed


def test_lines_say_that_an_evaluation_runs_only_if_it_takes_long():
    console, stream, clock = plain()
    console.write(100, 1.0, METRICS)
    console.evaluating(0, 20, 0)
    console.evaluating(0, 20, 7)
    assert "evaluating" not in stream.getvalue()
    clock.now = 3.0
    console.evaluating(3, 20, 7)
    assert stream.getvalue().endswith("evaluating: 3 of 20 episodes, step 7\n")


def test_the_console_knows_the_newest_and_the_lowest_training_return():
    console, _, _ = plain()
    assert np.isnan(console.training_returns).all()
    for value in (20.0, 5.0, float("nan"), 300.0, float("nan")):
        console.write(100, 1.0, {"episode/return": value})
    assert console.training_returns == (300.0, 5.0)


def test_no_time_between_two_writes_divides_by_nothing():
    console, stream, _ = plain(total_steps=0)
    console.write(0, 0.0, {})
    console.write(10, 0.0, {})
    console.close()
    assert "steps/s" not in stream.getvalue(), "what is not known is not said"


def test_an_update_in_which_no_episode_ended_leaves_the_return_standing():
    console, stream, clock = plain()
    console.write(1, 1.0, {"episode/return": 42.0})
    clock.now = 10.0
    console.write(2, 2.0, {"episode/return": float("nan")})
    assert "return 42" in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("env_steps", "start_steps", "metrics", "summary"),
    [
        (
            1000,
            0,
            {"eval/return_mean": 487.5, "eval/return_std": 12.0},
            "1,000 steps in 1:15, evaluation return 487.5 +/- 12",
        ),
        (1000, 0, {"eval/return_mean": -12345.6}, "1,000 steps in 1:15, evaluation return -12,346"),
        (1000, 0, {"episode/return": 42.0}, "1,000 steps in 1:15, training return 42, not evaluated"),
        (400, 0, {"episode/return": 42.0}, "stopped at 400 of 1,000 steps in 1:15, training return 42, not evaluated"),
        (1000, 500, {"eval/return_mean": 9.0}, "1,000 steps (resumed at 500) in 1:15, evaluation return 9"),
    ],
)
def test_the_summary_is_the_last_line(env_steps, start_steps, metrics, summary):
    console, stream, _ = plain(start_steps=start_steps)
    console.write(env_steps, 75.0, metrics)
    console.close()
    assert stream.getvalue().splitlines()[-1] == f"ppo CartPole-v1: {summary}"


def test_closing_twice_says_the_summary_once_and_a_run_without_updates_says_nothing():
    console, stream, _ = plain()
    console.close()
    assert stream.getvalue() == ""
    console, stream, _ = plain()
    console.write(1000, 1.0, METRICS)
    console.close()
    console.close()
    assert stream.getvalue().count("not evaluated") == 1


def test_a_character_the_stream_cannot_write_does_not_end_the_run():
    encoded = io.BytesIO()
    console = Console("ppo", "CartPole-v1", 1000, stream=io.TextIOWrapper(encoded, encoding="ascii"))
    console.message("schedule γ ✓")
    assert encoded.getvalue() == b"schedule ? ?\n"


def test_on_a_terminal_1024_writes_in_a_second_draw_the_bar_8_times():
    terminal, clock = Terminal(), Clock()
    console = Console("ppo", "CartPole-v1", 2000, stream=terminal, clock=clock)
    for step in range(1024):
        clock.now = step / 1024
        console.write(step, clock.now, METRICS)
    drawn = terminal.getvalue().count("CartPole-v1")
    console.close()
    assert drawn == 8


def test_a_write_that_draws_nothing_takes_less_than_5_microseconds():
    console = Console("ppo", "CartPole-v1", 10**9, stream=Terminal())
    metrics = METRICS | {f"loss/{i}": float(i) for i in range(12)}
    fastest = float("inf")
    for _ in range(30):
        console.write(0, 0.0, metrics)
        before = time.process_time()  # CPU time: independent of other processes
        for step in range(500):
            console.write(step, 0.0, metrics)
        fastest = min(fastest, (time.process_time() - before) / 500)
    console.close()
    assert fastest < 5e-6


def test_a_message_stands_above_the_bar_and_after_it_the_bar_is_drawn_again():
    terminal = Terminal()
    console = Console("ppo", "CartPole-v1", 1000, stream=terminal)
    console.write(500, 1.0, METRICS)
    before = len(terminal.getvalue())
    console.message("evaluation at 500: [bold] 480")
    added = terminal.getvalue()[before:]
    console.close()
    assert added.index("evaluation at 500: [bold] 480") < added.index("CartPole-v1")


@pytest.mark.parametrize("unicode", [True, False])
def test_the_bar_has_two_lines_never_wider_than_the_terminal(unicode):
    progress = Status(
        "ppo CartPole-v1", 0.5, [" 50%", "500 / 1,000 steps", "5 s left"], ["return 195.5", "100 steps/s", "policy 22%"]
    )
    for width in range(1, 130):
        first, second = two_lines(progress, width, unicode).plain.split("\n")
        assert max(len(first), len(second)) <= width


def test_half_of_the_bar_is_full_at_half_of_the_steps():
    assert two_lines(Status("ppo", 0.5, [], []), 25, unicode=False).plain == "ppo  " + "#" * 10 + "-" * 10 + "\n"


TRAINING = """
import time
from birl.run.console import Console
console = Console("ppo", "CartPole-v1", 1000)
try:
    for step in range(10_000):
        console.write(step % 1000, 0.0, {"episode/return": 1.0})
        time.sleep(0.01)
finally:
    CLOSE
"""


@pytest.mark.parametrize("close", ["console.close()", "pass"])
def test_ctrl_c_gives_the_cursor_back_even_if_nobody_closes_the_console(close):
    shown = interrupt_on_a_terminal(TRAINING.replace("CLOSE", close), {"TERM": "xterm-256color"})
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_no_color_is_respected_and_the_bar_is_still_drawn():
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9]m|\x1b\[[0-9;]*9[0-9]m")
    assert coloured.search(interrupt_on_a_terminal(TRAINING.replace("CLOSE", "pass"), {"TERM": "xterm-256color"}))
    shown = interrupt_on_a_terminal(TRAINING.replace("CLOSE", "pass"), {"TERM": "xterm-256color", "NO_COLOR": "1"})
    assert not coloured.search(shown)
    assert "─" in shown


def test_a_dumb_terminal_gets_plain_lines():
    assert "\x1b" not in interrupt_on_a_terminal(TRAINING.replace("CLOSE", "console.close()"), {"TERM": "dumb"})


def interrupt_on_a_terminal(code: str, environment: dict[str, str]) -> str:
    """What a program showed on its own terminal until it got SIGINT."""
    master, slave = pty.openpty()
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "COLORTERM")
    }
    program = [sys.executable, "-c", code]
    process = subprocess.Popen(
        program, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, env={**kept, "PYTHONUTF8": "1", **environment}
    )
    os.close(slave)
    shown = b""
    while b"CartPole" not in shown:
        shown += os.read(master, 4096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            shown += os.read(master, 4096)
        except OSError:  # the terminal's other end is closed
            break
    process.wait(timeout=SECONDS)
    os.close(master)
    return shown.decode()


def test_an_evaluation_that_takes_long_says_how_far_it_is():
    console, stream, clock = plain()
    console.write(500, 1.0, METRICS)
    for second in range(5):
        clock.now = float(second)
        console.evaluating(2, 20, 1000 * second)
    shown = [line for line in stream.getvalue().splitlines() if "evaluating" in line]
    assert shown == [
        f"ppo CartPole-v1:  50%, 500 / 1,000 steps, evaluating: 2 of 20 episodes, step {step}"
        for step in ("2,000", "4,000")
    ]


def test_the_last_steps_are_shown_before_their_evaluation_whose_result_is_said_once():
    console, stream, clock = plain()
    console.write(500, 1.0, METRICS)
    clock.now = 0.5
    console.write(1000, 1.5, METRICS)
    console.evaluating(0, 20, 10)
    clock.now = 1.0
    console.write(1000, 2.0, {"eval/return_mean": 0.955, "eval/return_std": 0.0123, "eval/episodes": 20})
    console.close()
    lines = stream.getvalue().splitlines()
    assert [re.findall(r"[ \d]+%", line)[:1] for line in lines] == [["  50%"], [" 100%"], []]
    assert lines[-1] == "ppo CartPole-v1: 1,000 steps in 2.0 s, evaluation return 0.955 +/- 0.0123 over 20 episodes"


def test_a_run_that_was_stopped_does_not_repeat_an_evaluation_of_earlier_steps():
    console, stream, _ = plain()
    console.write(500, 1.0, METRICS | {"eval/return_mean": 7.0})
    console.write(600, 1.0, METRICS)
    console.close()
    assert (
        stream.getvalue()
        .splitlines()[-1]
        .endswith("stopped at 600 of 1,000 steps in 1.0 s, training return 195.5, not evaluated")
    )


@pytest.mark.parametrize("error", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_output_that_cannot_be_written_does_not_end_a_run(error, monkeypatch):
    silenced = []
    monkeypatch.setattr("birl.run.console.silence", silenced.append)
    console, stream, _ = plain()
    monkeypatch.setattr(stream, "write", Mock(side_effect=OSError(error, os.strerror(error))), raising=False)
    console.write(500, 1.0, METRICS)
    console.message("checkpoint at 500")
    console.close()
    assert bool(silenced) == (error != errno.ENOSPC), "a disk that is full may have room later"


def test_without_any_output_the_console_says_nothing(monkeypatch):
    """As with pythonw, or after >&-."""
    monkeypatch.setattr(sys, "stdout", None)
    console = Console("ppo", "CartPole-v1", 1000)
    console.write(500, 1.0, METRICS)
    console.close()
