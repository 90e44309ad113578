"""Which settings a fork cannot change, because they do not fit the checkpoint it begins with."""

from typing import Any

from birl.config import ConfigError, from_stored, require, to_json
from birl.envs.make import spaces_of
from birl.envs.spaces import has_images
from birl.errors import CheckpointError
from birl.lab.branch import Branch
from birl.nets.allowance import limited_by
from birl.registry import algorithm_named
from birl.run.given import PASSED_IN
from birl.run.state_tensors import tensors_to_state
from birl.settings import flat_settings
from birl.speed import prepare_jax

Changes = dict[str, tuple[Any, Any]]
# Settings that the snapshot is made for; it cannot be restored with others.
FIXED = {
    "env.num_envs": "the saved episodes are those of that many environments",
    "env.backend": "the saved episodes are those of the other kind of environments",
    "env.ray_actors": "the saved episodes are divided among that many Ray actors",
    "pool": "the checkpoint is that of the other pool",
    "actor_learners": "the checkpoint has a part for each of them",
    "replay_size": "the saved replay has that size",
    "prioritized": "only a prioritized replay has priorities, and the saved one is used",
    "prefill": "only an empty replay is prefilled, and that of the checkpoint is used",
}
WITH_REPLAY = {"rollout_length": "the saved replay consists of rollouts of that length"}


def require_fit(branch: Branch, config: Any, changed: Changes, make_network: Any = None) -> None:
    """Raise ConfigError, which names the setting, if the checkpoint does not fit this Config."""
    require_unfinished(branch, config)
    fixed = FIXED | (WITH_REPLAY if "replay_size" in flat_settings(config) else {})
    for name in changed.keys() & fixed.keys():
        _refuse(branch, name, changed[name], fixed[name])
    _require_spaces(branch, config, changed)
    if (problem := _misfit(branch, config, make_network)) is None:
        return
    suspects = not_of_run(changed)
    for name, values in suspects.items():
        if (own := _misfit_alone(branch, name, values[1], make_network)) is not None:
            _refuse(branch, name, values, own)
    names = ", ".join(suspects) or "make_network"
    raise ConfigError(f"fork with other {names}: {problem}; leave them as they were in {branch.parent}")


def require_unfinished(branch: Branch, config: Any) -> None:
    """Raise ConfigError if the fork would end before it begins."""
    done, total = branch.saved.env_steps, config.run.total_steps
    require(
        total > done,
        f"total_steps {total:,} must be more than the {done:,} steps of the checkpoint; "
        "set total_steps, or begin at an earlier one: --at STEP",
    )


def not_of_run(changed: Changes) -> Changes:
    """The changes that can be why a checkpoint does not fit: not its length, seed, evaluations."""
    return {name: values for name, values in changed.items() if not name.startswith("run.")}


def _require_spaces(branch: Branch, config: Any, changed: Changes) -> None:
    """Raise ConfigError if the environment was changed and has other spaces now."""
    names = [name for name in changed if name.startswith("env.")]
    if not names or config.env.id == PASSED_IN:
        return
    saved = branch.saved.observation_space, branch.saved.action_space
    for kind, before, now in zip(("observation", "action"), saved, spaces_of(config.env), strict=True):
        if before != now:
            _refuse(branch, names[0], changed[names[0]], f"the {kind} space was {before} and would be {now}")


def _misfit(branch: Branch, config: Any, make_network: Any) -> str | None:
    """Why the saved State is not one of this Config; None if it is."""
    prepare_jax(config, has_images(branch.saved.observation_space))
    algorithm = algorithm_named(branch.algorithm)
    try:
        with limited_by(branch.saved.tensors):
            template = algorithm.init(config, branch.saved.observation_space, branch.saved.action_space, make_network)
        tensors_to_state(template, branch.saved.tensors)
    except CheckpointError as problem:
        return str(problem)
    return None


def _misfit_alone(branch: Branch, name: str, value: Any, make_network: Any) -> str | None:
    """As `_misfit`, of one change; None too if it is valid only together with another change."""
    try:
        return _misfit(branch, _with_change(branch, name, value), make_network)
    except ConfigError:
        return None


def _with_change(branch: Branch, name: str, value: Any) -> Any:
    """The parent's Config with one setting changed, given by its dotted name."""
    settings = to_json(branch.config)
    *parts, last = name.split(".")
    inner = settings
    for part in parts:
        inner = inner[part]
    inner[last] = value
    return from_stored(algorithm_named(branch.algorithm).Config, settings)


def _refuse(branch: Branch, name: str, values: tuple[Any, Any], reason: str) -> None:
    old, new = values
    setting = "env" if name == "env.id" else name.rpartition(".")[2]
    remedy = f"leave it as it is, or begin a new run with the other settings: birl train --like {branch.parent}"
    raise ConfigError(f"{setting} {old} -> {new} cannot be changed in a fork: {reason}; {remedy}")
