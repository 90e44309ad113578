"""Loading policies: from a run, from one of its checkpoints, or from a policy file."""

import dataclasses
import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from birl.config import EnvConfig, Plain, require
from birl.envs.make import MakeEnv, name_of_make_env, spaces_of
from birl.envs.registration import with_id
from birl.envs.spaces import has_images
from birl.errors import CheckpointError, ConfigError, cut
from birl.nets.allowance import limited_by
from birl.registry import algorithm_named, name_of
from birl.run import checkpoint_folder
from birl.run.checkpoint import Checkpoint
from birl.run.checkpoint import load as load_checkpoint
from birl.run.directory import (
    CHECKPOINTS,
    CONFIG,
    POLICY,
    StoredSettings,
    read_settings,
    require_no_group,
    settings_in,
)
from birl.run.manifest import MANIFEST
from birl.run.policy import Policy, make_policy
from birl.run.policy_file import read_policy
from birl.run.state_tensors import tensors_to_state
from birl.run.trust import allowed_env, config_in, import_stored_algorithm, is_own, with_allowed_encoder
from birl.speed import prepare_jax


@runtime_checkable
class HasNetwork(Protocol):
    """What acts, with the whole network in it."""

    network: Any


def load(path: str | Path, make_network: Any = None, trust: bool = False, make_encoder: Any = None) -> Policy:
    """The policy in a file that `policy.save` wrote, of a run, or of a checkpoint directory.

    Of a run it is the best checkpoint if evaluations chose one, else the newest; of one that was
    shared without checkpoints, the policy file in it. What was made elsewhere or by someone else
    may import the module of its encoder only with `trust`. If the encoder or the network was made
    by a function of your script, pass that again.
    """
    path = Path(path)
    if _is_one_file(path):
        return policy_in_file(path, make_network, trust, make_encoder)
    if has_policy_alone(path):
        return _shared_policy(path, make_network, trust, make_encoder)
    return policy_of(find_checkpoint(path), make_network, trust, make_encoder)


def policy_in_file(path: Path, make_network: Any = None, trust: bool = False, make_encoder: Any = None) -> Policy:
    """The policy in a policy file; ConfigError if it may not import its encoder (see trust.py)."""
    saved = read_policy(path.resolve())
    own = is_own(saved.algorithm, saved.settings, saved.signature)
    import_stored_algorithm(saved.algorithm, own, trust, path)
    try:
        config = saved.config()
    except ConfigError as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem
    config = with_allowed_encoder(config, make_encoder, own, trust, path)
    spaces = saved.observation_space, saved.action_space
    template = _fresh_state(config, spaces, saved.tensors, make_network, path)
    parameters = algorithm_named(saved.algorithm).policy(template)
    try:
        parameters = tensors_to_state(parameters, {f".{name}": tensor for name, tensor in saved.tensors.items()})
    except CheckpointError as problem:
        raise CheckpointError(f"{path}: {problem}; if it has a network of your own, pass make_network=") from problem
    network = parameters.network if isinstance(parameters, HasNetwork) else template.network
    policy = Policy(config, parameters, network.initial_memory, *spaces)
    policy.masks = saved.masks
    return policy


def policy_of(saved: Checkpoint, make_network: Any = None, trust: bool = False, make_encoder: Any = None) -> Policy:
    """The policy in a checkpoint; ConfigError if it may not import its encoder (see trust.py)."""
    settings = settings_in(saved)
    config = with_allowed_encoder(_config_in(settings, trust), make_encoder, _is_own(settings), trust, saved.path)
    spaces = saved.observation_space, saved.action_space
    template = _fresh_state(config, spaces, saved.tensors, make_network, saved.path / "config.json")
    policy = make_policy(config, tensors_to_state(template, saved.tensors), *spaces)
    policy.env = _known_env(settings, config)
    policy.masks = saved.manifest["progress"]["masks"]
    policy.env_steps = saved.env_steps
    return policy


def has_policy_alone(run_dir: Path) -> bool:
    """Whether this run has a policy file and no checkpoint, as one that was shared without."""
    held = os.path.lexists(run_dir / POLICY) and os.path.lexists(run_dir / CONFIG)
    return held and not os.path.lexists(run_dir / MANIFEST) and not checkpoint_folder.numbered(run_dir / CHECKPOINTS)


def _shared_policy(run_dir: Path, make_network: Any, trust: bool, make_encoder: Any) -> Policy:
    """The policy file in a run, with the settings of the run's evaluations and environment."""
    policy = policy_in_file(run_dir / POLICY, make_network, trust, make_encoder)
    settings = read_settings(run_dir)
    config = _config_in(settings, trust)
    policy.config = dataclasses.replace(policy.config, run=config.run)
    policy.env = _known_env(settings, config)
    return policy


def load_to_play(
    source: Policy | str | Path,
    env: str | EnvConfig | None = None,
    trust: bool = False,
    make_network: Any = None,
    make_encoder: Any = None,
    kwargs: dict[str, Plain] | None = None,
    make_env: MakeEnv | None = None,
) -> tuple[Policy, EnvConfig]:
    """The policy of a file, a run or a checkpoint, and the environment to play it in.

    `env` replaces the environment of the run, or only its id, `make_env` is a function that makes
    it, and `kwargs` replace its keyword arguments. ConfigError if the environment has other spaces,
    or may not be made (see trust.py).
    """
    if make_env is not None:
        require(env is None, "env and make_env each name the environment; use one of them")
        env = name_of_make_env(make_env)
    wrong = f"env {cut(env)} is not an environment's id"
    require(env is None or isinstance(env, str | EnvConfig), f"{wrong}; use make_env= for a class or a function")
    if not isinstance(source, Policy) and has_policy_alone(Path(source)):
        policy = _shared_policy(Path(source), make_network, trust, make_encoder)
        named = _allowed_env(read_settings(Path(source)), trust, env, kwargs)
        _require_spaces(named, (policy.observation_space, policy.action_space))
        return policy, named
    if not isinstance(source, Policy) and not _is_one_file(Path(source)):
        saved = find_checkpoint(Path(source))
        config = config_of(saved, trust, env, kwargs)
        return policy_of(saved, make_network, trust, make_encoder), config.env
    networks = make_network, trust, make_encoder
    policy = source if isinstance(source, Policy) else policy_in_file(Path(source), *networks)
    named = _named_env(policy, env, kwargs, policy if isinstance(source, Policy) else source)
    if env is not None or kwargs is not None:
        _require_spaces(named, (policy.observation_space, policy.action_space))
    return policy, named


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


def config_of(
    saved: Checkpoint,
    trust: bool = False,
    given: str | EnvConfig | None = None,
    kwargs: dict[str, Plain] | None = None,
) -> Any:
    """The Config of a checkpoint, to make its environment or the `given` one, with these kwargs.

    ConfigError if that environment may not be made (see trust.py).
    """
    settings = settings_in(saved)
    env = _allowed_env(settings, trust, given, kwargs)
    if given is not None or kwargs is not None:
        _require_spaces(env, (saved.observation_space, saved.action_space))
    return dataclasses.replace(_config_in(settings, trust), env=env)


def _allowed_env(
    settings: StoredSettings, trust: bool, given: str | EnvConfig | None, kwargs: dict[str, Plain] | None
) -> EnvConfig:
    """The environment of these settings or the `given` one, if it may be made (see trust.py)."""
    stored = _config_in(settings, trust).env
    if isinstance(given, EnvConfig):
        env = given
    else:
        stored = stored if kwargs is None else dataclasses.replace(stored, kwargs={})
        env, notices = allowed_env(stored, _is_own(settings), trust, given, settings.source)
        for notice in notices:
            warnings.warn(notice, stacklevel=5)
    return env if kwargs is None else dataclasses.replace(env, kwargs=kwargs)


def _config_in(settings: StoredSettings, trust: bool = False) -> Any:
    return config_in(settings.algorithm, settings.values, _is_own(settings), trust, settings.source)


def _is_own(settings: StoredSettings) -> bool:
    return is_own(settings.algorithm, settings.values, settings.signature)


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in this directory, or the best one of this run.

    If the run has no best checkpoint, or it is damaged, this is the newest undamaged one.
    """
    if os.path.lexists(path / MANIFEST):
        return load_checkpoint(path)
    require_no_group(path)
    directory = path / CHECKPOINTS
    report = partial(warnings.warn, stacklevel=4)
    found = checkpoint_folder.numbered(directory)[::-1]
    best = checkpoint_folder.read_best(directory, report)
    if best is not None:
        found.sort(key=lambda checkpoint: checkpoint.name != best["checkpoint"])  # the best first, then the newest
    saved = checkpoint_folder.load_first(found, directory, report)
    if saved is None:
        remedy = "give a run directory such as runs/mine, or train one: birl train ppo CartPole-v1"
        raise CheckpointError(f"{path} holds no checkpoint; {remedy}")
    return saved


def _is_one_file(path: Path) -> bool:
    return path.exists() and not path.is_dir()


def _require_spaces(env: EnvConfig, expected: tuple[Any, Any]) -> None:
    found = spaces_of(env)
    require(found == expected, f"env {env.id!r} has spaces {found}, and the policy was trained for {expected}")


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


def _known_env(settings: StoredSettings, config: Any) -> EnvConfig | None:
    """The run's environment; None if it may be made only with the user's consent."""
    try:
        return allowed_env(config.env, _is_own(settings), False, None, settings.source)[0]
    except ConfigError:
        return None
