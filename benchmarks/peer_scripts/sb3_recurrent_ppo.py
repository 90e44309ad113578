"""sb3-contrib's RecurrentPPO, measured: see measure.py.

The network is Birl's: encoder, one LSTM for actor and critic, linear heads.
"""

import gymnasium as gym
import torch
from measure import read_settings
from sb3_contrib import RecurrentPPO
from sb3_run import learn_and_report, ppo_arguments
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, create_mlp


class Encoder(BaseFeaturesExtractor):
    """tanh layers before the LSTM; sb3-contrib's own `net_arch` would put them after it."""

    def __init__(self, observation_space: gym.Space, hidden_sizes: list[int]):
        super().__init__(observation_space, hidden_sizes[-1])
        layers = create_mlp(observation_space.shape[0], -1, hidden_sizes, torch.nn.Tanh)
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


settings = read_settings()
model = RecurrentPPO(
    "MlpLstmPolicy",
    **ppo_arguments(settings),
    policy_kwargs={
        "net_arch": [],
        "features_extractor_class": Encoder,
        "features_extractor_kwargs": {"hidden_sizes": settings["hidden_sizes"]},
        "lstm_hidden_size": settings["core_size"],
        "shared_lstm": True,
        "enable_critic_lstm": False,
    },
)
learn_and_report(model, settings, ("sb3-contrib", "torch"))
