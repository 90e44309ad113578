"""What random actions return where nothing was learned: played once, and kept with the run."""

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from birl.errors import CheckpointError, ConfigError
from birl.lab.diagnosis.findings import Baseline, Diagnosis
from birl.run.files import read_json, write_json

BASELINE = "random.json"
EPISODES = 20
PATIENCE = 20.0  # seconds


def with_baseline(diagnosis: Diagnosis, play: bool = False, trust: bool = False) -> Diagnosis:
    """The diagnosis with the return of random actions, if nothing was learned for no known cause.

    It is that of a file of the run, or of a seed. With `play`, episodes are played and written
    there if there is none.
    """
    if diagnosis.findings or not diagnosis.learned_nothing:
        return diagnosis
    kept = [path for run_dir in diagnosis.runs if os.path.lexists(path := run_dir / BASELINE)]
    try:
        if kept:
            return replace(diagnosis, baseline=_read(kept[0]))
        if not play:
            return replace(diagnosis, no_baseline="birl diagnose plays them once")
        return replace(diagnosis, baseline=_play(diagnosis.runs[0], trust))
    except TimeoutError:
        reason = f"{EPISODES} episodes take more than {PATIENCE:.0f} seconds"
    except (CheckpointError, ConfigError, OSError) as problem:
        reason = str(problem)
    except Exception as problem:  # of the environment
        reason = f"{type(problem).__name__}: {problem}"
    return replace(diagnosis, no_baseline=reason)


def _read(path: Path) -> Baseline:
    stored = read_json(path)
    returns = stored.get("returns") if isinstance(stored, dict) else None
    numbers = isinstance(returns, list) and returns and all(type(value) in (int, float) for value in returns)
    if not numbers:
        raise CheckpointError(f"{path} is damaged: it must hold a list of returns; remove it")
    return _baseline(np.array(returns, float))


def _play(run_dir: Path, trust: bool) -> Baseline:
    from birl.envs.make import spaces_of
    from birl.lab.solving.random_policy import RandomPolicy
    from birl.run.evaluating import evaluate_policy
    from birl.run.given import Given
    from birl.run.loading import load_to_play

    player, env = load_to_play(run_dir, Given(trust=trust))
    begin = time.monotonic()

    def watch(ended: int, steps: int) -> None:
        if time.monotonic() - begin > PATIENCE:
            raise TimeoutError

    policy = RandomPolicy(spaces_of(env)[1], 0)
    returns = evaluate_policy(policy, env, EPISODES, 0, max_steps=player.config.run.eval_max_steps, watch=watch).returns
    with suppress(OSError):  # a directory that cannot be written to: then they are played again
        write_json(run_dir / BASELINE, {"returns": returns.tolist()})
    return _baseline(returns)


def _baseline(returns: np.ndarray) -> Baseline:
    from birl.lab.solving.verdict import mean_interval

    return Baseline(float(returns.mean()), *mean_interval(returns), len(returns))
