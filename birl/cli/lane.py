"""What runs in the process of a lane: a command of Birl that ends with the process of its group."""

from birl.cli import main as run_command
from birl.workers.child import end_with_parent


def main(lifeline: int, words: list[str]) -> int:
    """Run the command in these words; its exit code. `lifeline` is a descriptor of the parent's."""
    end_with_parent(lifeline)
    return run_command(words)
