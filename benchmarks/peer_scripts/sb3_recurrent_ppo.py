"""sb3-contrib's RecurrentPPO, measured: see measure.py. The network is Birl's: encoder, one LSTM for actor and critic, linear heads."""

import json

import gymnasium as gym
import torch
from measure import Stopwatch, read_settings, sb3_schedule
from sb3_contrib import RecurrentPPO
from sb3_watch import Watch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, create_mlp


class Encoder(BaseFeaturesExtractor):
    """tanh layers before the LSTM; sb3-contrib's own `net_arch` stands behind it, where Birl has none."""

    def __init__(self, observation_space: gym.Space, hidden_sizes: list[int]):
        super().__init__(observation_space, hidden_sizes[-1])
        layers = create_mlp(observation_space.shape[0], -1, hidden_sizes, torch.nn.Tanh)
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


settings = read_settings()
torch.set_num_threads(settings["threads"])
stopwatch = Stopwatch(settings["spawned_at"], settings["wanted_return"])
model = RecurrentPPO(
    "MlpLstmPolicy",
    make_vec_env(settings["env"], settings["num_envs"], seed=settings["seed"]),
    n_steps=settings["rollout_length"],
    batch_size=settings["rollout_length"] * settings["num_envs"] // settings["minibatches"],
    n_epochs=settings["epochs"],
    gamma=settings["discount"],
    gae_lambda=settings["gae_lambda"],
    learning_rate=sb3_schedule(settings["learning_rate"]),
    clip_range=sb3_schedule(settings["clip_range"]),
    ent_coef=settings["entropy_weight"],
    policy_kwargs={
        "net_arch": [],
        "features_extractor_class": Encoder,
        "features_extractor_kwargs": {"hidden_sizes": settings["hidden_sizes"]},
        "lstm_hidden_size": settings["core_size"],
        "shared_lstm": True,
        "enable_critic_lstm": False,
    },
    seed=settings["seed"],
    device="cpu",
)
model.learn(settings["total_steps"], callback=Watch(stopwatch), log_interval=None)
stopwatch.mark(model.num_timesteps)
print(json.dumps(stopwatch.report(("sb3-contrib", "stable-baselines3", "torch", "gymnasium", "numpy"))))
