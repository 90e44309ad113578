"""The functions of Stable-Baselines3 2.9.2 that a reader follows to new weights.

They are what `PPO("MlpPolicy", env).learn()` calls on CartPole-v1, DQN on CartPole-v1 and SAC on
Pendulum-v1, each with its default settings. Left out: environments; logging and callbacks;
functions that only check settings. The lists were read from the source, and agree with a recording
of these calls. reading_path.py counts the lines.
"""

Listed = dict[str, str]  # by file: functions, and classes with their methods; a class stands for its fields
SB3_ALL: Listed = {
    "common/base_class.py": "BaseAlgorithm: __init__ _setup_lr_schedule _update_current_progress_remaining"
    " _update_learning_rate _get_policy_from_name _setup_learn set_random_seed",
    "common/policies.py": "BaseModel: __init__ make_features_extractor extract_features device set_training_mode;"
    " BasePolicy: __init__",
    "common/buffers.py": "BaseBuffer: __init__ to_torch",
    "common/torch_layers.py": "BaseFeaturesExtractor: __init__ features_dim; FlattenExtractor: __init__ forward",
    "common/utils.py": "update_learning_rate; FloatSchedule: __init__ __call__; ConstantSchedule: __init__ __call__;"
    " get_device; obs_as_tensor",
    "common/preprocessing.py": "is_image_space; preprocess_obs; get_obs_shape; get_flattened_obs_dim; get_action_dim",
}
SB3_REPLAY: Listed = {  # of DQN and SAC
    "common/off_policy_algorithm.py": "OffPolicyAlgorithm: __init__ _setup_model _convert_train_freq _setup_learn learn"
    " collect_rollouts _sample_action _store_transition",
    "common/policies.py": "BaseModel: _update_features_extractor obs_to_tensor; BasePolicy: predict",
    "common/buffers.py": "BaseBuffer: sample _normalize_obs _normalize_reward;"
    " ReplayBuffer: __init__ add sample _get_samples _maybe_cast_dtype",
    "common/torch_layers.py": "create_mlp",
    "common/utils.py": "should_collect_more_steps; is_vectorized_observation; is_vectorized_box_observation;"
    " get_parameters_by_name; polyak_update",
    "common/type_aliases.py": "TrainFreq; RolloutReturn; ReplayBufferSamples",
}
SB3_PPO: Listed = {
    "ppo/ppo.py": "PPO: __init__ _setup_model train learn",
    "common/on_policy_algorithm.py": "OnPolicyAlgorithm: __init__ _setup_model collect_rollouts learn",
    "common/policies.py": "BasePolicy: init_weights; ActorCriticPolicy: __init__ _build_mlp_extractor _build forward"
    " extract_features _get_action_dist_from_latent evaluate_actions predict_values",
    "common/buffers.py": "BaseBuffer: swap_and_flatten reset;"
    " RolloutBuffer: __init__ reset compute_returns_and_advantage add get _get_samples",
    "common/distributions.py": "Distribution: __init__ get_actions;"
    " CategoricalDistribution: __init__ proba_distribution_net proba_distribution log_prob entropy sample;"
    " make_proba_distribution",
    "common/torch_layers.py": "MlpExtractor: __init__ forward forward_actor forward_critic",
    "common/utils.py": "explained_variance",
    "common/type_aliases.py": "RolloutBufferSamples",
}
SB3_DQN: Listed = {
    "dqn/dqn.py": "DQN: __init__ _setup_model _create_aliases _on_step train predict learn",
    "dqn/policies.py": "QNetwork: __init__ forward _predict;"
    " DQNPolicy: __init__ _build make_q_net _predict set_training_mode",
    "common/policies.py": "BaseModel: is_vectorized_observation",
    "common/utils.py": "LinearSchedule: __init__ __call__",
    "common/preprocessing.py": "maybe_transpose",
}
SB3_SAC: Listed = {
    "sac/sac.py": "SAC: __init__ _setup_model _create_aliases train learn",
    "sac/policies.py": "Actor: __init__ get_action_dist_params forward action_log_prob;"
    " SACPolicy: __init__ _build make_actor make_critic _predict set_training_mode",
    "common/base_class.py": "BaseAlgorithm: predict",
    "common/off_policy_algorithm.py": "OffPolicyAlgorithm: _on_step",
    "common/policies.py": "BasePolicy: squash_output scale_action unscale_action; ContinuousCritic: __init__ forward",
    "common/distributions.py": "Distribution: __init__ get_actions; sum_independent_dims;"
    " DiagGaussianDistribution: __init__ proba_distribution log_prob sample actions_from_params;"
    " SquashedDiagGaussianDistribution: __init__ proba_distribution log_prob sample log_prob_from_params",
    "common/torch_layers.py": "get_actor_critic_arch",
}
SB3 = {"ppo": (SB3_ALL, SB3_PPO), "dqn": (SB3_ALL, SB3_REPLAY, SB3_DQN), "sac": (SB3_ALL, SB3_REPLAY, SB3_SAC)}
SB3_COUNTS = {"ppo": (1081, 10), "dqn": (1202, 10), "sac": (1377, 11)}  # lines and files
