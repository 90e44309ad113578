"""Loading policies: from a run, from one of its checkpoints, or from a policy file."""

import dataclasses
import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from birl.config import EnvConfig, Plain, require
from birl.envs.make import name_of_make_env, spaces_of
from birl.envs.registration import with_id
from birl.envs.spaces import has_images
from birl.errors import CheckpointError, ConfigError, cut
from birl.nets.allowance import limited_by
from birl.registry import algorithm_named, name_of
from birl.run import checkpoint
from birl.run.checkpoint import MANIFEST, Checkpoint, load_checkpoint
from birl.run.directory import (
    CHECKPOINTS,
    CONFIG,
    POLICY,
    StoredSettings,
    read_settings,
    require_no_group,
    settings_in,
)
from birl.run.given import Given
from birl.run.policy import Policy, make_policy
from birl.run.policy_file import read_policy
from birl.run.state_tensors import tensors_to_state
from birl.run.trust import Consent, consent_to
from birl.speed import prepare_jax


@runtime_checkable
class HasNetwork(Protocol):
    """Parameters that hold the whole network."""

    network: Any


def load(path: str | Path, make_network: Any = None, trust: bool = False, make_encoder: Any = None) -> Policy:
    """The policy in a file that `policy.save` wrote, of a run, or of a checkpoint directory.

    For a run: the best checkpoint if evaluations chose one, else the newest; for one that was
    shared without checkpoints, the policy file in it. What was made elsewhere or by someone else
    may import the module of its encoder only with `trust`. If the encoder or the network was made
    by a function of your script, pass that again.
    """
    path = Path(path)
    given = Given(make_network=make_network, make_encoder=make_encoder, trust=trust)
    if _is_one_file(path):
        return _policy_in_file(path, given)
    if has_policy_alone(path):
        return _shared_policy(path, given)[0]
    saved = find_checkpoint(path)
    return _policy_of(saved, settings_in(saved).consent(trust), given)


def load_to_play(
    source: Policy | str | Path, given: Given, kwargs: dict[str, Plain] | None = None
) -> tuple[Policy, EnvConfig]:
    """The policy of a file, a run or a checkpoint, and the environment to play it in.

    The `given` environment replaces that of the run, or only its id, and `kwargs` replace its
    keyword arguments. ConfigError if the environment has other spaces, or may not be made (see
    trust.py).
    """
    env = given.env
    if given.make_env is not None:
        require(env is None, "env and make_env each name the environment; use one of them")
        env = name_of_make_env(given.make_env)
    wrong = f"env {cut(env)} is not an environment's id"
    require(env is None or isinstance(env, str | EnvConfig), f"{wrong}; use make_env= for a class or a function")
    is_other = env is not None or kwargs is not None
    if isinstance(source, Policy):
        policy, named = source, _named_env(source, env, kwargs, source)
    elif has_policy_alone(path := Path(source)):
        policy, stored, consent = _shared_policy(path, given)
        named, is_other = _allowed_env(stored, consent, env, kwargs), True
    elif _is_one_file(path):
        policy = _policy_in_file(path, given)
        named = _named_env(policy, env, kwargs, source)
    else:
        saved = find_checkpoint(path)
        stored = settings_in(saved)
        consent = stored.consent(given.trust)
        named = _allowed_env(stored, consent, env, kwargs)
        if is_other:  # before its network is made
            _require_spaces(named, (saved.observation_space, saved.action_space))
        return _policy_of(saved, consent, given), named
    if is_other:
        _require_spaces(named, (policy.observation_space, policy.action_space))
    return policy, named


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in this directory, or the best one of this run.

    If the run has no best checkpoint, or it is damaged, this is the newest undamaged one.
    """
    if os.path.lexists(path / MANIFEST):
        return load_checkpoint(path)
    require_no_group(path)
    directory = path / CHECKPOINTS
    report = partial(warnings.warn, stacklevel=4)
    found = checkpoint.checkpoints_in(directory)[::-1]
    best = checkpoint.read_best(directory, report)
    if best is not None:
        found.sort(key=lambda checkpoint: checkpoint.name != best["checkpoint"])  # the best first, then the newest
    saved = checkpoint.load_first(found, directory, report)
    if saved is None:
        remedy = "give a run directory such as runs/mine, or train one: birl train ppo CartPole-v1"
        raise CheckpointError(f"{path} holds no checkpoint; {remedy}")
    return saved


def has_policy_alone(run_dir: Path) -> bool:
    """True if this run has a policy file and no checkpoint, as one that was shared without."""
    held = os.path.lexists(run_dir / POLICY) and os.path.lexists(run_dir / CONFIG)
    return held and not os.path.lexists(run_dir / MANIFEST) and not checkpoint.checkpoints_in(run_dir / CHECKPOINTS)


def _policy_in_file(path: Path, given: Given) -> Policy:
    """The policy in a policy file; ConfigError if it may not import its encoder (see trust.py)."""
    saved = read_policy(path.resolve())
    consent = consent_to(saved.algorithm, saved.settings, saved.signature, path, given.trust)
    consent.import_algorithm(saved.algorithm)
    try:
        config = saved.config()
    except ConfigError as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem
    config = consent.with_encoder(config, given.make_encoder)
    spaces = saved.observation_space, saved.action_space
    template = _fresh_state(config, spaces, saved.tensors, given.make_network, path)
    parameters = algorithm_named(saved.algorithm).policy(template)
    try:
        parameters = tensors_to_state(parameters, {f".{name}": tensor for name, tensor in saved.tensors.items()})
    except CheckpointError as problem:
        raise CheckpointError(f"{path}: {problem}; if it has a network of your own, pass make_network=") from problem
    network = parameters.network if isinstance(parameters, HasNetwork) else template.network
    policy = Policy(config, parameters, network.initial_memory, *spaces)
    policy.masks = saved.masks
    return policy


def _shared_policy(run_dir: Path, given: Given) -> tuple[Policy, StoredSettings, Consent]:
    """The policy file in a run, with the settings of the run's evaluations and environment."""
    policy = _policy_in_file(run_dir / POLICY, given)
    stored = read_settings(run_dir)
    consent = stored.consent(given.trust)
    config = consent.config(stored.algorithm, stored.values)
    policy.config = dataclasses.replace(policy.config, run=config.run)
    policy.env = _known_env(consent, config)
    return policy, stored, consent


def _policy_of(saved: Checkpoint, consent: Consent, given: Given) -> Policy:
    """The policy in a checkpoint; ConfigError if it may not import its encoder (see trust.py)."""
    config = consent.with_encoder(consent.config(saved.manifest["algorithm"], saved.config), given.make_encoder)
    spaces = saved.observation_space, saved.action_space
    template = _fresh_state(config, spaces, saved.tensors, given.make_network, saved.path / "config.json")
    policy = make_policy(config, tensors_to_state(template, saved.tensors), *spaces)
    policy.env = _known_env(consent, config)
    policy.masks = saved.manifest["progress"]["masks"]
    policy.env_steps = saved.env_steps
    return policy


def _fresh_state(
    config: Any, spaces: tuple[Any, Any], tensors: dict[str, np.ndarray], make_network: Any, source: Path
) -> Any:
    """A fresh State of these settings, which are those in the file `source`, for these tensors."""
    algorithm = algorithm_named(name_of(config))
    try:
        prepare_jax(config, has_images(spaces[0]))
        with limited_by(tensors):
            return algorithm.init(config, *spaces, make_network)
    except (ValueError, ArithmeticError, MemoryError) as problem:
        if make_network is not None:
            raise  # the mistake is in the caller's code
        raise CheckpointError(f"no network can be made from the settings in {source}: {problem}") from problem


def _named_env(
    policy: Policy, env: str | EnvConfig | None, kwargs: dict[str, Plain] | None, source: object
) -> EnvConfig:
    """The environment that the user names for a policy, or else the policy's own."""
    if isinstance(env, EnvConfig):
        named = env
    else:
        wrong = f"{source} does not say which environment to play"
        is_known = env is not None or policy.env is not None
        require(is_known, f'{wrong}; name it: env="CartPole-v1", --env CartPole-v1')
        own = policy.env or EnvConfig(ignore_observations=policy.config.env.ignore_observations)
        named = own if env is None else with_id(own, env)
    return named if kwargs is None else dataclasses.replace(named, kwargs=kwargs)


def _allowed_env(
    stored: StoredSettings, consent: Consent, given: str | EnvConfig | None, kwargs: dict[str, Plain] | None
) -> EnvConfig:
    """The environment of these settings or the `given` one, if it may be made (see trust.py)."""
    own = consent.config(stored.algorithm, stored.values).env
    if isinstance(given, EnvConfig):
        env = given
    else:
        env, notices = consent.env(own if kwargs is None else dataclasses.replace(own, kwargs={}), given)
        for notice in notices:
            warnings.warn(notice, stacklevel=4)
    return env if kwargs is None else dataclasses.replace(env, kwargs=kwargs)


def _known_env(consent: Consent, config: Any) -> EnvConfig | None:
    """The run's environment; None if it may be made only with the user's consent."""
    try:
        return dataclasses.replace(consent, trust=False).env(config.env)[0]
    except ConfigError:
        return None


def _is_one_file(path: Path) -> bool:
    return path.exists() and not path.is_dir()


def _require_spaces(env: EnvConfig, expected: tuple[Any, Any]) -> None:
    found = spaces_of(env)
    require(found == expected, f"env {env.id!r} has spaces {found}, and the policy was trained for {expected}")
