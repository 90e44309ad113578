"""The command line. `birl --help` imports nothing heavy: each command imports what it needs when it
is called.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

from birl.run.signals import starting
from birl.run.streams import is_abandoned, open_closed_streams, silence

COMMANDS = {
    "train": "train an agent: birl train ppo CartPole-v1 --seed 1",
    "resume": "go on with a run, exactly: birl resume runs/mine",
    "eval": "score a trained policy: birl eval runs/mine --episodes 20",
    "play": "watch it in a window: birl play runs/mine",
    "record": "film it: birl record runs/mine --out mine.mp4",
    "plot": "draw learning curves: birl plot runs/a runs/b --out curves.png",
    "list": "algorithms, presets and their measured scores",
    "doctor": "is this installation in order?",
    "check-env": "is my environment fit for training? birl check-env MyEnv-v0",
}


def main(args: list[str] | None = None) -> int:
    """Run a command; the exit code: 0 done, 1 failed, 2 wrong usage, 3 not a number, 129, 130 and
    143 stopped by a signal.
    """
    open_closed_streams()
    try:
        return _run(args)
    except BrokenPipeError:
        if not is_abandoned(sys.stdout):
            raise
        return 0  # `| head` has read enough
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                silence(stream)


def _run(args: list[str] | None) -> int:
    words = sys.argv[1:] if args is None else args
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if words[0] in ("-V", "--version"):
        import birl

        print(f"birl {birl.__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"birl: {words[0]!r} is not a command\n\n{_usage()}", file=sys.stderr)
        return 2
    return _guarded(words[0], words[1:])


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "Birl: deep reinforcement learning.",
            "",
            "usage: birl COMMAND ...",
            "",
            *lines,
            "",
            "birl COMMAND --help tells more.",
        ]
    )


def _guarded(command: str, words: list[str]) -> int:
    """Run a command, and say what was wrong in a sentence where a person can mend it; a traceback
    is for bugs.
    """
    with starting():
        from birl import commands
        from birl.config import ConfigError
        from birl.errors import CheckpointError, NonFiniteError, RunDirectoryError

    run: Callable[[list[str]], Any] = commands.COMMANDS[command]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return int(run(words) or 0)
    except (ConfigError, CheckpointError, FileNotFoundError) as problem:
        print(f"birl: {problem}", file=sys.stderr)
        return 2
    except NonFiniteError as problem:
        print(f"birl: training stopped: {problem}", file=sys.stderr)
        return 3
    except RunDirectoryError as problem:
        print(f"birl: training stopped: {problem}", file=sys.stderr)
        return 1
    except MemoryError as problem:
        print(f"birl: there is not enough memory: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:  # a full disk, a directory that is not ours
        if isinstance(problem, BrokenPipeError) and is_abandoned(sys.stdout):
            raise
        print(f"birl: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # outside training, which catches it itself
        print("birl: interrupted", file=sys.stderr)
        return 130


def _show_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    """One line; where in the source it was raised helps nobody here."""
    from birl.errors import plain_warning

    print(f"birl: warning: {plain_warning(message)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
