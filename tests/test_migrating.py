"""The page on migrating from Stable-Baselines3 names every argument, with both libraries' defaults.

SB3 is not installed here; its signatures are those of version 2.9.2.
"""

import pytest

from tests import markdown
from tests.setting_tables import signature, spans, table_after, value_for, wrong_defaults

PAGE = markdown.ROOT / "docs" / "migrating-from-sb3.md"
COMMON = """stats_window_size=100 tensorboard_log=None policy_kwargs=None verbose=0 seed=None device=auto
            _init_setup_model=True policy env"""
ON_POLICY = """gamma=0.99 max_grad_norm=0.5 vf_coef=0.5 ent_coef=0.0 use_sde=False sde_sample_freq=-1
               rollout_buffer_class=None rollout_buffer_kwargs=None"""
REPLAY = """buffer_size=1000000 learning_starts=100 gamma=0.99 replay_buffer_class=None
            replay_buffer_kwargs=None optimize_memory_usage=False n_steps=1"""
CONTINUOUS = f"{REPLAY} batch_size=256 tau=0.005 train_freq=1 gradient_steps=1 action_noise=None"
ALGORITHMS = {  # the arguments of each class, without those in COMMON
    "PPO": f"""{ON_POLICY} learning_rate=3e-4 n_steps=2048 batch_size=64 n_epochs=10 gae_lambda=0.95
               clip_range=0.2 clip_range_vf=None normalize_advantage=True target_kl=None""",
    "A2C": f"""{ON_POLICY} learning_rate=7e-4 n_steps=5 gae_lambda=1.0 rms_prop_eps=1e-5
               use_rms_prop=True normalize_advantage=False""",
    "DQN": f"""{REPLAY} learning_rate=1e-4 batch_size=32 tau=1.0 train_freq=4 gradient_steps=1
               target_update_interval=10000 exploration_fraction=0.1 exploration_initial_eps=1.0
               exploration_final_eps=0.05 max_grad_norm=10""",
    "DDPG": f"{CONTINUOUS} learning_rate=1e-3",
    "TD3": f"""{CONTINUOUS} learning_rate=1e-3 policy_delay=2 target_policy_noise=0.2
               target_noise_clip=0.5""",
    "SAC": f"""{CONTINUOUS} learning_rate=3e-4 ent_coef=auto target_update_interval=1
               target_entropy=auto use_sde=False sde_sample_freq=-1 use_sde_at_warmup=False""",
}
SHARED = "DDPG, TD3 and SAC"  # the heading of the table that these three share
OTHERS = {  # by a part of the line above a table, or its heading
    "## Every algorithm": COMMON,
    "## VecNormalize": """venv training=True norm_obs=True norm_reward=True clip_obs=10.0 clip_reward=10.0
                          gamma=0.99 epsilon=1e-8 norm_obs_keys=None""",
    "Arguments of `EvalCallback`": """eval_env callback_on_new_best=None callback_after_eval=None
                                      n_eval_episodes=5 eval_freq=10000 log_path=None
                                      best_model_save_path=None deterministic=True render=False
                                      verbose=1 warn=True""",
    "Arguments of `CheckpointCallback`": """save_freq save_path name_prefix=rl_model verbose=0
                                            save_replay_buffer=False save_vecnormalize=False""",
}
NAMES = {  # tables that give no defaults
    "## policy_kwargs": """net_arch activation_fn ortho_init log_std_init full_std use_expln squash_output
                           features_extractor_class features_extractor_kwargs
                           share_features_extractor normalize_images optimizer_class
                           optimizer_kwargs n_critics""",
    "## Callbacks": """EvalCallback CheckpointCallback StopTrainingOnRewardThreshold EveryNTimesteps
                       StopTrainingOnMaxEpisodes StopTrainingOnNoModelImprovement LogEveryNTimesteps
                       ProgressBarCallback BaseCallback CallbackList""",
    "## Methods and helpers": """log_interval tb_log_name progress_bar DummyVecEnv SubprocVecEnv
                                 VecFrameStack VecMonitor VecCheckNan VecVideoRecorder AtariWrapper
                                 MaskablePPO RecurrentPPO model.save_replay_buffer
                                 model.get_parameters() model.policy.get_distribution(obs)
                                 model.policy.predict_values(obs)""",
}
# Other words of the page that are SB3's: n_envs, make_vec_env, env_kwargs, wrapper_class,
# terminal_on_life_loss, evaluate_policy, reset_num_timesteps, num_timesteps, progress_remaining.


def rows_of(algorithm: str) -> list[list[str]]:
    """The rows about one algorithm: its own table, and the one that it shares."""
    own = [] if algorithm == "DDPG" else table_after(PAGE, f"## {algorithm}\n")
    return own + (table_after(PAGE, f"## {SHARED}\n") if algorithm in SHARED else [])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_argument_of_an_algorithm_has_a_row_with_its_default(algorithm):
    wanted = signature(ALGORITHMS[algorithm])
    found = {spans(row[0])[0]: value_for(row[1], algorithm) for row in rows_of(algorithm)}
    assert found == wanted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_settings_of_birl_exist_and_have_the_defaults_that_are_said(algorithm):
    assert wrong_defaults(rows_of(algorithm), algorithm) == []


@pytest.mark.parametrize("line", OTHERS)
def test_every_argument_that_is_not_an_algorithms_has_a_row_with_its_default(line):
    assert {spans(row[0])[0]: row[1] for row in table_after(PAGE, line)} == signature(OTHERS[line])


@pytest.mark.parametrize("line", OTHERS)
def test_settings_of_run_and_environment_have_the_defaults_that_are_said(line):
    assert wrong_defaults(table_after(PAGE, line), "ppo") == []


@pytest.mark.parametrize("line", NAMES)
def test_what_has_no_default_has_a_row(line):
    assert set(NAMES[line].split()) <= {name for row in table_after(PAGE, line) for name in spans(row[0])}
