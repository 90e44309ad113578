"""What is shared: a run, or a group of seeds of which the policy of one is shared."""

from pathlib import Path
from typing import NamedTuple

from birl.config import require
from birl.lab.compare import compare_groups
from birl.lab.comparison import Spread
from birl.lab.sharing.public import public_history
from birl.run.checkpoint import read_best
from birl.run.directory import CHECKPOINTS, POLICY
from birl.run.history import RunHistory, SeedGroup, by_settings, read_histories
from birl.run.loading import find_checkpoint, has_policy_alone, load


class Origin(NamedTuple):
    """Which policy of a run is shared."""

    env_steps: int | None  # of its checkpoint; None: only the policy is there
    best_return: float | None  # of the evaluation that chose it; None: none did, and it is the newest


class Subject(NamedTuple):
    """Runs that differ only in their seed, and the one whose policy is shared."""

    directory: Path  # of the run, or of the group
    group: SeedGroup  # as others may see it: see public.py
    run: RunHistory  # the one of the group whose policy is shared
    run_dir: Path  # where that one is here
    score: Spread  # over seeds
    score_text: str  # what the score of a seed is, in words
    scored_policy: str  # which policy that is of, over how many episodes
    origin: Origin


def read_subject(directory: Path) -> Subject:
    """The run or the group in this directory; of a group the seed with the highest score is shared.

    ConfigError if its runs differ in more than their seed, or if there is no run.
    """
    runs = read_histories(directory)
    groups = by_settings(runs)
    remedy = "name one of them, or a directory with seeds of the same settings"
    require(len(groups) == 1, f"{directory} holds runs of {len(groups)} different settings; {remedy}")
    public = [public_history(run, directory) for run in runs]
    [group] = by_settings(public)
    found = compare_groups([group])
    score = found.groups[0].score
    place = max(range(len(runs)), key=lambda index: score.values.get(str(public[index].run_dir), float("-inf")))
    run_dir = runs[place].run_dir
    return Subject(directory, group, public[place], run_dir, score, found.score, found.scored_policy, _origin(run_dir))


def write_policy(run_dir: Path, out: Path) -> None:
    """Write the policy of a run to a file; one that is all that the run has stays as it is."""
    if not (has_policy_alone(run_dir) and out.resolve() == (run_dir / POLICY).resolve()):
        load(run_dir).save(out)


def _origin(run_dir: Path) -> Origin:
    if has_policy_alone(run_dir):
        return Origin(None, None)
    saved = find_checkpoint(run_dir)
    best = read_best(run_dir / CHECKPOINTS)
    is_best = best is not None and int(best["checkpoint"]) == saved.env_steps
    return Origin(saved.env_steps, float(best["return_mean"]) if best is not None and is_best else None)
