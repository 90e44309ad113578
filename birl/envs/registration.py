"""Environments by id: how they are found, and what to do about an id that cannot be made."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from birl.config import CLASSIC, LOCAL, OWN, SUITES, ConfigError, EnvConfig, function_named, is_compiled_id, require
from birl.envs.compiled.interface import CompiledEnv
from birl.envs.probes import register_probes
from birl.errors import SIMILAR, cut, install_extra


class Package(NamedTuple):
    """A package that brings a module, where Birl has no extra for it."""

    install: str
    beside: str = ""  # what else, in versions that work with it
    ids: tuple[str, ...] = ()  # how the ids begin that it registers when it is imported

    def command(self) -> str:
        """How to install it."""
        return f"pip install '{self.install}'" + (f" '{self.beside}'" if self.beside else "")

    def conflict(self) -> str:
        """The conflict between installed versions, and how to end it; "" if they work together."""
        name, _, bound = self.beside.partition("<")
        try:
            installed = importlib.metadata.version(name) if name else ""
        except importlib.metadata.PackageNotFoundError:
            return ""
        if _release(installed) < _release(bound) or not name:
            return ""
        return f"{self.install} works with {self.beside}, and {name} {installed} is installed: {self.command()}"


EXTRAS = {  # the extra that brings a module
    "ale_py": "atari",
    "mujoco": "mujoco",
    "gymnax": "gymnax",
    "six": "gymnax",  # gymnax imports it and does not say so
    "brax": "brax",
    "jumanji": "jumanji",
    "mujoco_playground": "playground",
}
PACKAGES = {
    "Box2D": Package("box2d"),
    "pygame": Package("gymnasium[classic-control]"),
    "minigrid": Package("minigrid", ids=("MiniGrid-", "BabyAI-")),
    "gymnasium_robotics": Package(
        "gymnasium-robotics", "mujoco<3.9", ids=("Fetch", "Hand", "PointMaze", "AntMaze", "Adroit", "FrankaKitchen")
    ),
    "shimmy": Package("shimmy[dm-control]", "mujoco<4", ids=("dm_control/",)),
    "highway_env": Package(
        "highway-env", ids=("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-")
    ),
    "popgym": Package("popgym", ids=("popgym-",)),
}
OLD_MUJOCO = "mujoco_py"  # which nobody maintains
# The latest versions of ids that tutorials name by older ones, by how they begin.
LATEST = {"Fetch": 4, "HandReach": 3, "HandManipulate": 1, "AntMaze": 5, "PointMaze": 3}
GAMES = """
Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling Boxing Breakout
Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk Enduro FishingDerby Freeway Frostbite
Gopher Gravitar Hero IceHockey Jamesbond Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman NameThisGame
Phoenix Pitfall Pong PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders
StarGunner Surround Tennis TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor YarsRevenge Zaxxon
"""  # the 57 that papers use; ale-py, which has more, need not be installed
VARIANT = re.compile(r"(-ram)?(NoFrameskip|Deterministic)?$")  # of an older name
OLD_SUITES = re.compile(r"Roboschool(\w+)|(\w+?)(?:Py)?BulletEnv")  # whose packages nobody maintains
RELATIVES = {  # of their environments, where another name has the same or a near task
    "CartPoleContinuous": "InvertedPendulum",
    "InvertedPendulumSwingup": "dm_control/cartpole-swingup-v0",
    "HumanoidFlagrun": "Humanoid",
    "HumanoidFlagrunHarder": "Humanoid",
    "AtlasForwardWalk": "Humanoid",
    "Thrower": "Pusher",
    "Striker": "Pusher",
    "Kuka": "FetchPickAndPlace-v4",
    "KukaCam": "FetchPickAndPlace-v4",
    "Minitaur": "Ant",
    "MinitaurDuck": "Ant",
    "Racecar": "CarRacing",
    "RacecarZed": "CarRacing",
}


def find_spec(env_id: str) -> EnvSpec:
    """The spec of an id. Imports the module of a module:Id, or the package that registers the id.

    A function in module:function has a spec too, which says only that it makes the environment.
    """
    function = find_function(env_id)
    name = env_id.rpartition(":")[2]
    return gym.spec(name) if function is None else EnvSpec(name, entry_point=function)


def find_function(env_id: str) -> Callable[..., Any] | None:
    """The function that a module:function names; None if the id is, or should be, registered."""
    module, _, name = env_id.rpartition(":")
    if module == LOCAL:
        return function_named(env_id, "env.id")
    if module:
        importlib.import_module(module)
    _import_package(name)
    if not module or name in gym.registry:
        return None
    try:
        return function_named(env_id, "env.id")
    except ConfigError as problem:
        listed = ", ".join(_registered_by(module)) or "none"
        raise ConfigError(f"{problem}, and registers no {name}; ids that it registers: {listed}") from problem


def package_of(env_id: str) -> str:
    """The package that registers this id when it is imported; "" if it is not known."""
    name = env_id.rpartition(":")[2]
    return next((module for module, package in PACKAGES.items() if name.startswith(package.ids)), "")


def newer_version(env_id: str) -> str | None:
    """The id of the latest version that is known if it is newer than this one, else None."""
    name, _, version = env_id.rpartition(":")[2].rpartition("-v")
    versions = [
        spec.version or 0
        for spec in gym.registry.values()
        if "/".join(filter(None, (spec.namespace, spec.name))) == name
    ]
    latest = max(versions or [number for start, number in LATEST.items() if name.startswith(start)], default=0)
    return f"{name}-v{latest}" if version.isdigit() and latest > int(version) else None


def make_arguments(config: EnvConfig) -> dict[str, Any]:
    """Arguments of gymnasium.make or envpool.make for an environment that is no Atari game."""
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    return limit | dict(config.kwargs)


def make_compiled(config: EnvConfig) -> CompiledEnv:
    """The compiled environment of these settings; ConfigError if there is none of this id."""
    with errors_explained(config):
        make, arguments = maker_of(config.id)
        env = make(*arguments, **config.kwargs)
    wrong = f"env.id {config.id!r} made {env!r}, which is a Gymnasium environment and not a compiled one"
    require(not isinstance(env, gym.Env), f"{wrong}; use backend gymnasium, or write it as a birl.CompiledEnv")
    wrong = f"env.id {config.id!r} made {env!r}, which has no spaces, reset and step as birl.CompiledEnv has them"
    require(isinstance(env, CompiledEnv), f"{wrong}; see docs/compiled-environments.md")
    return env


def with_id(config: EnvConfig, env_id: str) -> EnvConfig:
    """The settings with another id; with backend gymnasium if that is no compiled environment.

    So a policy that was trained in compiled environments can be played in others.
    """
    named = replace(config, id=env_id)
    if config.backend != "compiled" or env_id in CLASSIC or is_compiled_id(env_id):
        return named
    with errors_explained(named):
        function = find_function(env_id)
    is_gymnasium = function is None or (isinstance(function, type) and issubclass(function, gym.Env))
    return replace(named, backend="gymnasium") if is_gymnasium else named


def maker_of(env_id: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """The function that makes this environment, and its arguments before `kwargs`."""
    prefix, _, name = env_id.partition("/")
    if path := (CLASSIC | OWN).get(env_id):
        return _function(path), ()
    if is_compiled_id(env_id):
        return _function(SUITES[prefix]), (name,)
    if (function := find_function(env_id)) is not None:
        return function, ()
    known = ", ".join([*CLASSIC, *OWN, *(f"{prefix}/NAME" for prefix in SUITES)])
    meant = suggest_compiled(env_id)
    remedy = f"use one of {known}, a class of your own as module:Class, or backend gymnasium"
    wrong = f"env.id {env_id!r} is not among the compiled environments"
    raise ConfigError(f"{wrong}; {meant}. Or {remedy}" if meant else f"{wrong}; {remedy}")


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    return vars(importlib.import_module(module))[name]


def _import_package(name: str) -> None:
    """Import the package that registers this id, if it is known and has not been imported."""
    register_probes()
    if name.startswith("ALE/"):
        ale_py = importlib.import_module("ale_py")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else every process prints a banner
        gym.register_envs(ale_py)
    if (package := package_of(name)) and name not in gym.registry:
        gym.register_envs(importlib.import_module(package))


def _registered_by(module: str) -> list[str]:
    """The ids whose environments are in this module's package."""
    package = module.partition(".")[0]
    entries = {name: spec.entry_point for name, spec in gym.registry.items()}
    homes = {name: entry if isinstance(entry, str) else entry.__module__ for name, entry in entries.items() if entry}
    return sorted(name for name, home in homes.items() if home.partition(":")[0].partition(".")[0] == package)


@contextmanager
def errors_explained(config: EnvConfig, render_mode: str | None = None) -> Iterator[None]:
    """Turn whatever is raised while an environment is made into a ConfigError with a remedy."""
    try:
        yield
    except ConfigError:
        raise
    except (ImportError, gym.error.Error, SystemExit, TypeError) as error:
        raise ConfigError(_explanation(config, render_mode, error)) from error
    except Exception as error:
        if not _conflict(config):
            raise
        raise ConfigError(_explanation(config, render_mode, error)) from error


def _explanation(config: EnvConfig, render_mode: str | None, error: BaseException) -> str:
    match error:
        case gym.error.UnregisteredEnv():
            name = config.id.rpartition(":")[2]
            remedy = f"For an environment of your own, name the module that registers it: my_module:{name}"
            if meant := suggest_env(config.id):
                return f"env.id {config.id!r} is not registered; {meant}. {remedy}"
            return f"env.id {config.id!r} is not registered: {error} {remedy}"
        case ModuleNotFoundError():
            return _missing_module(config, error.name or "")
        case gym.error.DependencyNotInstalled() if OLD_MUJOCO in str(error):
            maintained = newer_version(config.id) or "a newer version"
            is_missing = importlib.util.find_spec("mujoco") is None
            remedy = _conflict(config) or (install_extra(EXTRAS["mujoco"]) if is_missing else "")
            wrong = f"env.id {config.id!r} needs {OLD_MUJOCO}, which is no longer maintained; use {maintained}"
            return f"{wrong}. {remedy}" if remedy else wrong
        case gym.error.DependencyNotInstalled():
            words = str(error).lower()
            missing = next((name for name in EXTRAS | PACKAGES if re.search(rf"\b{name.lower()}\b", words)), "")
            return f"{_missing_module(config, missing)} ({error})"
        case gym.error.DeprecatedEnv():
            conflict = _conflict(config)
            return f"env.id {config.id!r} is too old: {error}" + (f" {conflict}" if conflict else "")
        case _ if conflict := _conflict(config):
            said = f": {' '.join(str(error).split())}" if str(error) else ""
            return f"env.id {config.id!r} cannot be made ({type(error).__name__}{said}); {conflict}"
        case ImportError():  # from an installed package: something was moved or removed
            newer = newer_version(config.id)
            return f"env.id {config.id!r} cannot be made: {error}{f'; use {newer}' if newer else ''}"
        case gym.error.Error():
            meant = suggest_env(config.id) or "ids end in a version: CartPole-v1"
            return f"env.id {config.id!r} cannot be made: {error}; {meant}"
        case SystemExit():
            return f"env.id {config.id!r} cannot be made: it called sys.exit({error}); let it raise an error instead"
    if render_mode is not None:  # the other arguments worked in training
        listed = f"list {render_mode!r} in metadata['render_modes']"
        remedy = f"let its class take render_mode, {listed} and have a render method"
        return f"env.id {config.id!r} cannot be drawn: {error}; {remedy}"
    return f"env.kwargs {cut(config.kwargs)} do not fit env.id {config.id!r}: {error}; use what its constructor takes"


def _conflict(config: EnvConfig) -> str:
    """Versions of the id's package and of another one that do not work together; "" if they do."""
    module = package_of(config.id)
    return PACKAGES[module].conflict() if module else ""


def _release(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def _missing_module(config: EnvConfig, module: str) -> str:
    wrong = f"env.id {config.id!r} needs the module {module}, which is not installed"
    if module in EXTRAS:
        return f"{wrong}: {install_extra(EXTRAS[module])}"
    if module in PACKAGES:
        newer = newer_version(config.id)
        return f"{wrong}: {PACKAGES[module].command()}" + (f", and use {newer}" if newer else "")
    if relative := living_relative(config.id):
        return f"{wrong}; {relative}"
    return f"{wrong}: install {module}, or correct the module before the colon"


def suggest_env(env_id: str) -> str:
    """A suggestion for an unknown environment: "you may mean ALE/Pong-v5"; "" if nothing is near.

    It is compared with the ids that are registered now, and with the Atari games.
    """
    if relative := living_relative(env_id):
        return relative
    module, colon, name = env_id.rpartition(":")
    latest = _latest_ids()
    wanted = name.rpartition("/")[2].partition("-v")[0]
    plain = VARIANT.sub("", wanted).casefold()
    near = [plain] if plain in latest else get_close_matches(plain, latest, n=1, cutoff=SIMILAR)
    suggested = latest[near[0]] if near else name
    return f"you may mean {module}{colon}{suggested}" if suggested != name else ""


def living_relative(env_id: str) -> str:
    """A suggestion for a Roboschool or PyBullet environment: "you may mean Hopper-v5"; or ""."""
    old = OLD_SUITES.fullmatch(env_id.rpartition(":")[2].partition("-v")[0])
    if old is None:
        return ""
    name = old[1] or old[2]
    relative = RELATIVES.get(name, name)
    suggested = _latest_ids().get(relative.casefold(), relative if "-v" in relative else "")
    return f"you may mean {suggested}" if suggested else ""


def suggest_compiled(env_id: str) -> str:
    """A suggestion for an unknown compiled environment: "you may mean CartPole-v1"; or ""."""
    prefix, slash, name = env_id.partition("/")
    if slash and (near := get_close_matches(prefix.casefold(), SUITES, n=1, cutoff=SIMILAR)):
        return f"you may mean {near[0]}/{name}"
    known = {one.rpartition("/")[2].partition("-v")[0].casefold(): one for one in (*CLASSIC, *OWN)}
    wanted = env_id.rpartition("/")[2].partition("-v")[0].casefold()
    near = get_close_matches(wanted, known, n=1, cutoff=SIMILAR)
    return f"you may mean {known[near[0]]}" if near else ""


def _latest_ids() -> dict[str, str]:
    """The id of the latest version of each environment, by its name in small letters."""
    found = {}
    for spec in sorted(gym.registry.values(), key=lambda spec: (not spec.namespace, spec.version or 0)):
        found[spec.name.casefold()] = spec.id  # of two ids with one name, the one without a namespace
    found |= {name.rpartition("/")[2].partition("-v")[0].casefold(): name for name in OWN}
    return found | {game.casefold(): f"ALE/{game}-v5" for game in GAMES.split()}
