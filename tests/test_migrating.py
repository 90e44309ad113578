"""The page on migrating from Stable-Baselines3 names every argument, with both libraries' defaults.

SB3 is not installed here; its signatures are those of version 2.9.2. So its half of the page's
script is only read here. benchmarks/migration.py runs both halves and writes down which code it
measured.
"""

import ast
import re
import sys
from pathlib import Path

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
SHARED = ("PPO and A2C", "DDPG, TD3 and SAC")  # headings of tables that several algorithms share
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
FUNCTIONS = {  # what the page's script calls
    "PPO": f"{COMMON} {ALGORITHMS['PPO']}",
    "EvalCallback": OTHERS["Arguments of `EvalCallback`"],
    "ValueOfCorner": "verbose=0",
    "make_vec_env": """env_id n_envs=1 seed=None start_index=0 monitor_dir=None wrapper_class=None env_kwargs=None
                       vec_env_cls=None vec_env_kwargs=None monitor_kwargs=None wrapper_kwargs=None""",
    "evaluate_policy": """model env n_eval_episodes=10 deterministic=True render=False callback=None
                          reward_threshold=None return_episode_rewards=False warn=True""",
    "model.learn": """total_timesteps callback=None log_interval=1 tb_log_name=PPO reset_num_timesteps=True
                      progress_bar=False""",
    "model.predict": "observation state=None episode_start=None deterministic=False",
    "model.save": "path exclude=None include=None",
    "PPO.load": "path env=None device=auto custom_objects=None print_system_info=False force_reset=True",
}
SAME = 2.0  # returns this near are the same: a policy improves from -106 to -6
# Other words of the page that are SB3's: n_envs, make_vec_env, env_kwargs, wrapper_class,
# terminal_on_life_loss, evaluate_policy, reset_num_timesteps, num_timesteps, progress_remaining,
# _on_training_start, _on_rollout_end, _on_training_end.


def rows_of(algorithm: str) -> list[list[str]]:
    """The rows about one algorithm: its own table, and the one that it shares."""
    own = [] if algorithm == "DDPG" else table_after(PAGE, f"## {algorithm}\n")
    shared = [heading for heading in SHARED if algorithm in heading.replace(",", "").split()]
    return own + [row for heading in shared for row in table_after(PAGE, f"## {heading}\n")]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_argument_of_an_algorithm_has_a_row_with_its_default(algorithm):
    wanted = signature(ALGORITHMS[algorithm])
    found = {name: value_for(row[1], algorithm) for row in rows_of(algorithm) for name in spans(row[0])}
    assert found == wanted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_settings_of_birl_exist_and_have_the_defaults_that_are_said(algorithm):
    assert wrong_defaults(rows_of(algorithm), algorithm) == []


@pytest.mark.parametrize("line", OTHERS)
def test_every_argument_that_is_not_an_algorithms_has_a_row_with_its_default(line):
    found = {name: row[1] for row in table_after(PAGE, line) for name in spans(row[0])}
    assert found == signature(OTHERS[line])


@pytest.mark.parametrize("line", OTHERS)
def test_settings_of_run_and_environment_have_the_defaults_that_are_said(line):
    assert wrong_defaults(table_after(PAGE, line), "ppo") == []


@pytest.mark.parametrize("line", NAMES)
def test_what_has_no_default_has_a_row(line):
    assert set(NAMES[line].split()) <= {name for row in table_after(PAGE, line) for name in spans(row[0])}


@pytest.fixture
def migration(monkeypatch):
    """The script that measures both halves of the page."""
    monkeypatch.syspath_prepend(str(markdown.ROOT / "benchmarks"))
    import migration

    yield migration
    for name in ("migration", "peers", "results"):
        sys.modules.pop(name, None)


def section_of(path: Path) -> str:
    """What benchmarks/migration.py wrote into this file."""
    _, _, rest = path.read_text(encoding="utf-8").partition("<!-- migration:begin -->")
    return rest.partition("<!-- migration:end -->")[0]


def test_the_script_of_sb3_uses_only_arguments_that_sb3_has(migration):
    code = ast.parse(migration.blocks(PAGE.read_text())[migration.SB3])
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call) and ast.unparse(node.func) in FUNCTIONS]
    assert {ast.unparse(call.func) for call in calls} == FUNCTIONS.keys()
    for call in calls:
        known = signature(FUNCTIONS[ast.unparse(call.func)])
        named = {keyword.arg for keyword in call.keywords if keyword.arg}
        assert named <= known.keys(), ast.unparse(call)
        assert len(call.args) + len(named) <= len(known), ast.unparse(call)
    [policy_kwargs] = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "policy_kwargs"]
    keys = {ast.literal_eval(key) for key in policy_kwargs.keys}
    assert keys <= set(NAMES["## policy_kwargs"].split())


def test_the_results_are_those_of_the_code_on_the_page(migration):
    page = PAGE.read_text(encoding="utf-8")
    section = section_of(migration.RESULTS)
    assert migration.digest(page) in section, "run python benchmarks/migration.py"
    for shown in (PAGE, markdown.twin_of(PAGE)):
        rows = [row for row in section_of(shown).splitlines() if ".py" in row]
        assert len(rows) == 2
        assert all(row in section for row in rows)


def test_both_halves_of_the_page_reach_the_same_returns(migration):
    section = section_of(migration.RESULTS)
    sb3, birl = (float(found) for found in re.findall(r"^\| `\w+.py` \| (\S+) \|", section, re.MULTILINE))
    assert abs(sb3 - birl) < SAME
