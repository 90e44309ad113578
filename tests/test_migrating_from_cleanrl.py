"""The page on migrating from CleanRL names every argument of four scripts, with the defaults.

CleanRL is not installed here; the arguments are those of its master in 2026.
"""

import pytest

from birl import ALGORITHMS
from birl.maths.schedules import linear
from birl.registry import supports
from birl.run import trackers
from birl.settings import flat_settings, places_of
from tests import markdown
from tests.run.processes import call
from tests.setting_tables import signature, spans, table_after, value_for, wrong_defaults

PAGE = markdown.ROOT / "docs" / "migrating-from-cleanrl.md"
EVERY = "## Every script"
COMMON = """exp_name seed=1 torch_deterministic=True cuda=True track=False wandb_project_name=cleanRL
            wandb_entity=None capture_video=False"""
SAVING = "save_model=False upload_model=False hf_entity"
REPLAY = "num_envs=1 gamma=0.99 tau=0.005 batch_size=256 buffer_size=1000000"
SCRIPTS = {  # ppo.py, dqn.py, td3_continuous_action.py, sac_continuous_action.py; hf_entity is ""
    "PPO": f"""{COMMON} env_id=CartPole-v1 total_timesteps=500000 learning_rate=2.5e-4 num_envs=4 num_steps=128
               anneal_lr=True gamma=0.99 gae_lambda=0.95 num_minibatches=4 update_epochs=4 norm_adv=True
               clip_coef=0.2 clip_vloss=True ent_coef=0.01 vf_coef=0.5 max_grad_norm=0.5 target_kl=None
               batch_size=0 minibatch_size=0 num_iterations=0""",
    "DQN": f"""{COMMON} {SAVING} env_id=CartPole-v1 total_timesteps=500000 learning_rate=2.5e-4 num_envs=1
               buffer_size=10000 gamma=0.99 tau=1.0 target_network_frequency=500 batch_size=128 start_e=1
               end_e=0.05 exploration_fraction=0.5 learning_starts=10000 train_frequency=10""",
    "TD3": f"""{COMMON} {SAVING} {REPLAY} env_id=Hopper-v4 total_timesteps=1000000 learning_rate=3e-4
               policy_noise=0.2 exploration_noise=0.1 learning_starts=25000 policy_frequency=2 noise_clip=0.5""",
    "SAC": f"""{COMMON} {REPLAY} env_id=Hopper-v4 total_timesteps=1000000 learning_starts=5000 policy_lr=3e-4
               q_lr=1e-3 policy_frequency=2 target_network_frequency=1 alpha=0.2 autotune=True""",
}
# Other words of the page: WANDB_ENTITY, which Weights & Biases reads; ppo_continuous_action.py,
# ppo_atari.py, ppo_atari_lstm.py.

scripts = pytest.mark.parametrize("script", SCRIPTS)


@scripts
def test_every_argument_of_a_script_has_a_row_with_its_default(script):
    common = [row for row in table_after(PAGE, EVERY) if spans(row[0])[0] in signature(SCRIPTS[script])]
    rows = common + table_after(PAGE, f"## {script}\n")
    assert {spans(row[0])[0]: value_for(row[1], script) for row in rows} == signature(SCRIPTS[script])


def test_no_row_is_of_an_argument_that_no_script_has():
    known = set().union(*map(signature, SCRIPTS.values()))
    assert {spans(row[0])[0] for row in table_after(PAGE, EVERY)} <= known


@scripts
def test_the_settings_of_birl_exist_and_have_the_defaults_that_are_said(script):
    assert wrong_defaults(table_after(PAGE, EVERY) + table_after(PAGE, f"## {script}\n"), script) == []


def test_every_metric_that_has_a_name_of_cleanrl_is_on_the_page():
    said = set()
    for metric, name, algorithms in table_after(PAGE, "## Metric names"):
        said |= {(spans(metric)[0], spans(name)[0], algorithm) for algorithm in spans(algorithms) or [""]}
    own = {name: supports(name).aliases.get("cleanrl", {}) for name in ALGORITHMS}
    aliases = own | {"": trackers.COMMON["cleanrl"]}
    assert said == {(metric, alias.name, name) for name in aliases for metric, alias in aliases[name].items()}


def test_the_command_has_the_settings_of_cleanrl_s_ppo(monkeypatch):
    commands = [command.line for block in markdown.blocks_of(PAGE) for command in markdown.commands_of(block)]
    [line] = [line for line in commands if "--metric-names cleanrl" in line]
    configs = []
    monkeypatch.setattr("birl.run.start.train", lambda config, **_: configs.append(config))
    code, said = call(*line.split()[1:])
    assert code == 0, said
    [config] = configs
    ppo = signature(SCRIPTS["PPO"])
    assert (config.env.num_envs, config.rollout_length) == (int(ppo["num_envs"]), int(ppo["num_steps"]))
    assert (config.run.seed, config.run.total_steps) == (int(ppo["seed"]), int(ppo["total_timesteps"]))
    assert (config.minibatches, config.epochs) == (int(ppo["num_minibatches"]), int(ppo["update_epochs"]))
    assert (config.discount, config.gae_lambda) == (float(ppo["gamma"]), float(ppo["gae_lambda"]))
    assert config.learning_rate == linear(float(ppo["learning_rate"]), 0.0)
    assert config.clip_range == config.value_clip == float(ppo["clip_coef"])
    assert config.value_weight == float(ppo["vf_coef"]) / 2  # CleanRL halves the squared error
    assert config.entropy_weight == float(ppo["ent_coef"])
    assert config.gradient.max_grad_norm == float(ppo["max_grad_norm"])
    named = {option[2:].partition(" ")[0].replace("-", "_") for option in line.split(" ") if option.startswith("--")}
    apart = ("env",), ("run",)
    others = {name for name, place in places_of(type(config)).items() if place.path[:1] not in apart} - named
    found, default = flat_settings(config), flat_settings(type(config)())
    assert [name for name in sorted(others) if found[name] != default[name]] == []  # not the preset's
