"""The ids of compiled environments, and which settings ask for one.

Nothing is imported here: settings are checked with these tables before anything is made.
"""

from birl.config import EnvConfig

CLASSIC = {  # Gymnasium's environments that Birl also has in JAX, with the same physics
    "CartPole-v1": "birl.envs.compiled.cartpole:CartPole",
    "Acrobot-v1": "birl.envs.compiled.acrobot:Acrobot",
    "MountainCar-v0": "birl.envs.compiled.mountain_car:MountainCar",
    "MountainCarContinuous-v0": "birl.envs.compiled.mountain_car:MountainCarContinuous",
    "Pendulum-v1": "birl.envs.compiled.pendulum:Pendulum",
}
OWN = {  # Birl's own, which exist only in JAX
    "birl/MemoryGrid-v0": "birl.envs.compiled.memory_grid:MemoryGrid",
    "birl/Crawler-v0": "birl.envs.compiled.crawler:Crawler",
}
SUITES = {  # PREFIX/NAME: the function that makes NAME
    "gymnax": "birl.envs.compiled.gymnax:make_gymnax",
    "brax": "birl.envs.compiled.brax:make_brax",
    "jumanji": "birl.envs.compiled.jumanji:make_jumanji",
    "playground": "birl.envs.compiled.playground:make_playground",
}


def is_compiled(env: EnvConfig) -> bool:
    """Whether these settings ask for a compiled environment: by `backend`, or by an id."""
    return env.backend == "compiled" or is_compiled_id(env.id)


def is_compiled_id(env_id: str) -> bool:
    """Whether an id names an environment that exists only in JAX."""
    prefix, slash, _ = env_id.partition("/")
    return env_id in OWN or (bool(slash) and prefix in SUITES)


def has_twin(env: EnvConfig) -> bool:
    """Whether Gymnasium has the same environment, which is then evaluated, played and recorded."""
    return env.id in CLASSIC
