"""The environments that a check tries: those that training steps."""

from birl.compiled_ids import is_compiled
from birl.config import EnvConfig
from birl.env_checks import validate_env
from birl.envs.compiled.host import CompiledEnvs, new_programs, programs_of
from birl.envs.make import HostEnvs, make_envs


def tried_envs(config: EnvConfig, seed: int) -> HostEnvs:
    """The environments, not yet reset; compiled ones themselves, not their twins."""
    if not is_compiled(config):
        return make_envs(config, seed)
    validate_env(config)
    return CompiledEnvs(programs_of(config))


def new_tried_envs(config: EnvConfig, seed: int) -> HostEnvs:
    """The same, made as another process would make them: compiled ones are compiled anew."""
    return CompiledEnvs(new_programs(config)) if is_compiled(config) else make_envs(config, seed)
