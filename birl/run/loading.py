"""Loading policies: from a run, from one of its checkpoints, or from a policy file."""

import dataclasses
import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from birl.config import EnvConfig, Plain, require
from birl.config_json import from_json
from birl.envs.compiled.find import with_id
from birl.envs.make import spaces_of
from birl.errors import CheckpointError, ConfigError
from birl.registry import algorithm_named, name_of
from birl.run import checkpoint_folder
from birl.run.checkpoint import Checkpoint
from birl.run.checkpoint import load as load_checkpoint
from birl.run.directory import CHECKPOINTS, require_no_group
from birl.run.manifest import MANIFEST
from birl.run.policy import Policy, make_policy
from birl.run.policy_file import read_policy, require_fits
from birl.run.state_tensors import tensors_to_state
from birl.run.trust import allowed_env, is_own, with_allowed_encoder
from birl.speed import prepare_jax


@runtime_checkable
class HasNetwork(Protocol):
    """What acts, with the whole network in it."""

    network: Any


def load(path: str | Path, make_network: Any = None, trust: bool = False, make_encoder: Any = None) -> Policy:
    """The policy in a file that `policy.save` wrote, of a run, or of a checkpoint directory.

    Of a run it is the best checkpoint if evaluations chose one, else the newest. What was made
    elsewhere or by someone else may import the module of its encoder only with `trust`. If the
    encoder or the network was made by a function of your script, pass that again.
    """
    path = Path(path)
    if _is_one_file(path):
        return policy_in_file(path, make_network, trust, make_encoder)
    return policy_of(find_checkpoint(path), make_network, trust, make_encoder)


def policy_in_file(path: Path, make_network: Any = None, trust: bool = False, make_encoder: Any = None) -> Policy:
    """The policy in a policy file; ConfigError if it may not import its encoder (see trust.py)."""
    saved = read_policy(path.resolve())
    try:
        config = saved.config()
        if make_network is None:
            require_fits(saved.settings, saved.tensors)
    except ConfigError as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem
    own = is_own(saved.algorithm, saved.settings, saved.signature)
    config = with_allowed_encoder(config, make_encoder, own, trust, path)
    spaces = saved.observation_space, saved.action_space
    template = _fresh_state(config, spaces, make_network, path)
    parameters = algorithm_named(saved.algorithm).policy(template)
    try:
        parameters = tensors_to_state(parameters, {f".{name}": tensor for name, tensor in saved.tensors.items()})
    except CheckpointError as problem:
        raise CheckpointError(f"{path}: {problem}; if it has a network of your own, pass make_network=") from problem
    network = parameters.network if isinstance(parameters, HasNetwork) else template.network
    return Policy(config, parameters, network.initial_memory, *spaces)


def policy_of(saved: Checkpoint, make_network: Any = None, trust: bool = False, make_encoder: Any = None) -> Policy:
    """The policy in a checkpoint; ConfigError if it may not import its encoder (see trust.py)."""
    name = saved.manifest["algorithm"]
    config = from_json(algorithm_named(name).Config, saved.config)
    own = is_own(name, saved.config, saved.manifest.get("signature"))
    config = with_allowed_encoder(config, make_encoder, own, trust, saved.path)
    spaces = saved.observation_space, saved.action_space
    template = _fresh_state(config, spaces, make_network, saved.path / "config.json")
    policy = make_policy(config, tensors_to_state(template, saved.tensors), *spaces)
    policy.env = _known_env(saved, config)
    return policy


def load_to_play(
    source: Policy | str | Path,
    env: str | EnvConfig | None = None,
    trust: bool = False,
    make_network: Any = None,
    make_encoder: Any = None,
    kwargs: dict[str, Plain] | None = None,
) -> tuple[Policy, EnvConfig]:
    """The policy of a file, a run or a checkpoint, and the environment to play it in.

    `env` replaces the environment of the run, or only its id, and `kwargs` its keyword arguments.
    ConfigError if the environment has other spaces, or may not be made (see trust.py).
    """
    wrong = f"env {env!r} is not an environment's id"
    require(env is None or isinstance(env, str | EnvConfig), f"{wrong}; use make_env= for a class or a function")
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
    name = saved.manifest["algorithm"]
    config = from_json(algorithm_named(name).Config, saved.config)
    own = is_own(name, saved.config, saved.manifest.get("signature"))
    if isinstance(given, EnvConfig):
        env = given
    else:
        stored = config.env if kwargs is None else dataclasses.replace(config.env, kwargs={})
        env, notices = allowed_env(stored, own, trust, given, saved.path)
        for notice in notices:
            warnings.warn(notice, stacklevel=4)
    if kwargs is not None:
        env = dataclasses.replace(env, kwargs=kwargs)
    if given is not None or kwargs is not None:
        _require_spaces(env, (saved.observation_space, saved.action_space))
    return dataclasses.replace(config, env=env)


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


def _fresh_state(config: Any, spaces: tuple[Any, Any], make_network: Any, source: Path) -> Any:
    """A fresh State of these settings, which are those in the file `source`."""
    algorithm = algorithm_named(name_of(config))
    try:
        prepare_jax(config)
        return algorithm.init(config, *spaces, make_network)
    except (ValueError, ArithmeticError, MemoryError) as problem:
        if make_network is not None:
            raise  # the mistake is in the caller's code
        raise CheckpointError(f"no network can be made from the settings in {source}: {problem}") from problem


def _known_env(saved: Checkpoint, config: Any) -> EnvConfig | None:
    """The run's environment; None if it may be made only with the user's consent."""
    own = is_own(saved.manifest["algorithm"], saved.config, saved.manifest.get("signature"))
    try:
        return allowed_env(config.env, own, False, None, saved.path)[0]
    except ConfigError:
        return None
