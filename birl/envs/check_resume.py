"""Whether a run in these environments can be resumed exactly, tested by restoring snapshots."""

import warnings
from typing import NamedTuple

from birl.compiled_ids import is_compiled
from birl.config import EnvConfig
from birl.envs.compiled.host import programs_of
from birl.envs.findings import Finding, ok, warning
from birl.envs.make import make_envs, spare
from birl.envs.sampling import sample_actions
from birl.envs.snapshot import EACH, REPLAY, same_tree
from birl.envs.time_budget import TimeBudget
from birl.types import Envs

TRIAL_ENVS = 4
TRIAL_ROUNDS = 3  # with 4 environments; with fewer there are more rounds
TRIAL_STEPS = 60  # before and after a snapshot
TRIAL_HOLD = 8  # steps for which an action is repeated
TRIAL_SECONDS = 5.0  # of CPU time: the trial stops then, because a simulator may be slow


def check_resume(config: EnvConfig) -> list[Finding]:
    """Whether environments restored from a snapshot go on as the originals do."""
    if is_compiled(config):
        return [ok("exact resume", "the state of a compiled environment is arrays, which a checkpoint holds")]
    config = _trial_config(config)
    with make_envs(config, 0) as envs, make_envs(config, 1) as others:
        problem = _restore_trial(envs, others)
    if problem:
        text = f"a resumed run will differ from an uninterrupted one: {problem}"
        return [warning("exact resume is not possible", text)]
    return [ok("exact resume", "environments restored from a snapshot went on exactly as the originals")]


class Trial(NamedTuple):
    """What a trial of a run's environments found before training."""

    problem: str  # why a run in them cannot be resumed exactly; "" if nothing was found
    masks: bool | None  # whether they give action masks; None: the trial failed


def try_envs(config: EnvConfig) -> Trial:
    """What a trial of environments like these finds.

    Environments that are restored by replaying their episodes are tried, and those inside wrappers
    of the user's. Any other state that is copied needs no trial, and environments that cannot be
    saved say so themselves. The state of compiled ones is arrays.
    """
    if is_compiled(config):
        return Trial("", programs_of(config).copies.gives_masks)
    config = _trial_config(config)
    masks: bool | None = None
    try:
        with make_envs(config, 0) as envs:
            masks = envs.reset(0)[1] is not None
            tier = envs.snapshot().values.get("tier")
            if tier != REPLAY and not (tier == EACH and config.wrappers):
                return Trial("", masks)
            with make_envs(config, 1) as others:
                return Trial(_restore_trial(envs, others), masks)
    except Exception as error:
        return Trial(f"a trial in spare environments raised {type(error).__name__}: {error}", masks)


def _trial_config(config: EnvConfig) -> EnvConfig:
    """The config with few environments, because each is made twice and a simulator may be large.

    They run in a worker if the run has workers: there a step may crash or hang.
    """
    return spare(config, min(config.num_envs, TRIAL_ENVS), workers=1)


def _restore_trial(envs: Envs, others: Envs) -> str:
    """What went wrong when `others` were restored from `envs` and both stepped on, or ""."""
    budget = TimeBudget(TRIAL_SECONDS)
    envs.action_space.seed(0)
    envs.reset(0)  # once more than the others, which are new, as in a resumed run
    for seed in range(TRIAL_ENVS * TRIAL_ROUNDS // envs.num_envs):
        masks = envs.reset(seed)[1]
        for t in range(2 * TRIAL_STEPS):
            if masks is not None or t % TRIAL_HOLD == 0:  # repeated actions lead further
                actions = sample_actions(envs, masks)
            if t == TRIAL_STEPS:
                snapshot = envs.snapshot()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    others.restore(snapshot)
                if others.restore_problem:
                    return snapshot.reason or others.restore_problem.partition("; ")[2]
            step = envs.step(actions)
            masks = step.action_masks
            if t >= TRIAL_STEPS and not same_tree(step, others.step(actions)):
                wrong = "after a restore it stepped differently from the original"
                return f"{wrong}: it keeps state from one episode to the next"
            if not budget.is_left():
                return ""
    return ""
