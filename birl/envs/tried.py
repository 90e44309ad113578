"""The environments that a check tries: those that training steps."""

from birl.compiled_ids import is_compiled
from birl.config import EnvConfig
from birl.env_checks import validate_env
from birl.envs.compiled.host import CompiledEnvs, new_programs
from birl.envs.make import HostEnvs, make_envs


def tried_envs(config: EnvConfig, seed: int) -> HostEnvs:
    """The environments, not yet reset; compiled ones themselves, compiled anew at each call."""
    if not is_compiled(config):
        return make_envs(config, seed)
    validate_env(config)
    return CompiledEnvs(new_programs(config))
