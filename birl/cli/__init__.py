"""The command line.

`birl --help` imports nothing heavy: each command imports what it needs when it is called.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

from birl.run.signals import is_abandoned, open_closed_streams, silence, starting

COMMANDS = {
    "train": "train an agent: birl train ppo CartPole-v1 --seed 1",
    "resume": "continue a run, exactly: birl resume runs/mine",
    "fork": "begin a new run with a checkpoint of another: birl fork runs/mine --learning-rate 1e-4",
    "eval": "score a trained policy: birl eval runs/mine --episodes 20",
    "play": "watch it in a window: birl play runs/mine",
    "record": "record it as a video: birl record runs/mine --out mine.mp4",
    "export": "write a policy that acts without Birl: birl export runs/mine --format onnx",
    "plot": "draw learning curves: birl plot runs/a runs/b --out curves.png",
    "compare": "compare groups of seeds: birl compare runs/a runs/b",
    "report": "one HTML page about runs: birl report runs/a runs/b --out report.html",
    "list": "algorithms and what they support, presets and their measured scores",
    "doctor": "check this installation",
    "diagnose": "say what is probably wrong with a run: birl diagnose runs/mine",
    "check-env": "check whether an environment can be used for training: birl check-env MyEnv-v0",
    "tune": "search for settings: birl tune ppo CartPole-v1 --minutes 30",
    "solve": "find an agent for an environment: birl solve my_module:MyEnv-v0 --minutes 10",
    "card": "write a model card beside the policy: birl card runs/mine",
    "push": "upload a run to the Hugging Face Hub: birl push runs/mine me/mine",
    "pull": "download a run from there, as a stranger's: birl pull me/mine",
}


def main(args: list[str] | None = None) -> int:
    """Run a command; its exit code.

    0: success; 1: failure; 2: wrong usage; 3: NaN or infinity in training; 129, 130, 143: a signal.
    """
    open_closed_streams()
    try:
        return _run(args)
    except BrokenPipeError:
        if not is_abandoned(sys.stdout):
            raise
        return 0  # the reader of a pipe, such as `head`, has read enough
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
        meant = _suggested(words[0])
        if not meant:
            print(_usage(), file=sys.stderr)
        _complain(f"{words[0]!r} is not a command; {meant or 'those above are'}")
        return 2
    return _guarded(words[0], words[1:])


def _suggested(word: str) -> str:
    """A suggestion for an unknown command: "you may mean birl train", or "" if nothing is near."""
    from difflib import get_close_matches

    from birl import ALGORITHMS

    near = [f"train {word}"] if word in ALGORITHMS else get_close_matches(word.casefold(), COMMANDS, n=1)
    return f"you may mean birl {near[0]}" if near else ""


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
            "birl COMMAND --help shows its options.",
        ]
    )


def _guarded(command: str, words: list[str]) -> int:
    """Run a command. Errors that a user can fix become one sentence; bugs keep their traceback."""
    with starting():
        from birl.cli import commands
        from birl.config import ConfigError
        from birl.errors import CheckpointError, EnvError, NonFiniteError, RunDirectoryError, on_command_line

    run: Callable[[list[str]], Any] = commands.COMMANDS[command]
    try:
        with on_command_line(), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return int(run(words) or 0)
    except (ConfigError, CheckpointError, FileNotFoundError) as problem:
        _complain(problem)
        return 2
    except NonFiniteError as problem:
        _complain(f"training stopped: {problem}")
        return 3
    except RunDirectoryError as problem:
        _complain(f"training stopped: {problem}")
        return 1
    except EnvError as problem:
        _complain(problem)
        return 1
    except MemoryError as problem:
        _complain(f"there is not enough memory: {problem}")
        return 1
    except OSError as problem:  # a full disk, or a directory without permission
        if isinstance(problem, BrokenPipeError) and is_abandoned(sys.stdout):
            raise
        _complain(problem)
        return 1
    except KeyboardInterrupt:  # outside training, which catches it itself
        print("birl: interrupted", file=sys.stderr)
        return 130


def _complain(problem: object) -> None:
    """Print an error. Its text may come from another person's file, with terminal codes in it."""
    from birl.errors import printable_lines

    print(f"birl: {printable_lines(str(problem))}", file=sys.stderr)


def _show_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    """Print a warning as one line, without its place in the source."""
    from birl.errors import plain_warning

    _complain(f"warning: {plain_warning(message)}")
