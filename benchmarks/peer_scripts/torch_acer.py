"""ACER as PyTorch tutorials write it (minimalRL's pattern): one environment, no trust region.

After every few steps it learns from them, and once from sequences drawn from those it keeps.
Measured: see measure.py.
"""

import collections
import json
import random

import gymnasium as gym
import numpy as np
import torch
from measure import Stopwatch, read_settings
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional

TRUNCATION = 1.0  # c, as the pattern has it
MARK_EVERY = 1000  # steps

# Observation, action, reward, μ, not ended, first of its sequence.
Sequence = list[tuple[np.ndarray, int, float, np.ndarray, float, bool]]


class ActorCritic(nn.Module):
    """One hidden layer for the policy and for Q, as the pattern has it."""

    def __init__(self, inputs: int, hidden: int, actions: int):
        super().__init__()
        self.hidden, self.policy_head, self.value_head = (
            nn.Linear(inputs, hidden),
            nn.Linear(hidden, actions),
            nn.Linear(hidden, actions),
        )

    def policy(self, x: torch.Tensor, axis: int = 0) -> torch.Tensor:
        return functional.softmax(self.policy_head(functional.relu(self.hidden(x))), dim=axis)

    def values(self, x: torch.Tensor) -> torch.Tensor:
        return self.value_head(functional.relu(self.hidden(x)))


def as_tensors(sequences: list[Sequence]) -> tuple[torch.Tensor, ...]:
    rows = [(o, [a], r, m, [g], row == 0) for sequence in sequences for row, (o, a, r, m, g, _) in enumerate(sequence)]
    observations, actions, rewards, behaviour, going_on, firsts = zip(*rows, strict=True)
    return (
        torch.tensor(np.array(observations), dtype=torch.float),
        torch.tensor(actions),
        rewards,
        torch.tensor(np.array(behaviour), dtype=torch.float),
        going_on,
        firsts,
    )


def learn(model: ActorCritic, optimizer: torch.optim.Optimizer, sequences: list[Sequence], discount: float) -> None:
    observations, actions, rewards, behaviour, going_on, firsts = as_tensors(sequences)
    values = model.values(observations)
    chosen_values = values.gather(1, actions)
    probabilities = model.policy(observations, axis=1)
    chosen = probabilities.gather(1, actions)
    state_values = (values * probabilities).sum(1).unsqueeze(1).detach()
    ratios = probabilities.detach() / behaviour
    chosen_ratios = ratios.gather(1, actions)
    traces = chosen_ratios.clamp(max=TRUNCATION)
    corrections = (1 - TRUNCATION / ratios).clamp(min=0)

    retrace = state_values[-1] * going_on[-1][0]
    targets = []
    for row in reversed(range(len(rewards))):
        retrace = rewards[row] + discount * retrace
        targets.append(retrace.item())
        retrace = traces[row] * (retrace - chosen_values[row]) + state_values[row]
        if firsts[row] and row != 0:
            retrace = state_values[row - 1] * going_on[row - 1][0]
    targets_tensor = torch.tensor(targets[::-1], dtype=torch.float).unsqueeze(1)

    truncated = -traces * torch.log(chosen) * (targets_tensor - state_values)
    bias = -corrections * probabilities.detach() * torch.log(probabilities) * (values.detach() - state_values)
    loss = truncated + bias.sum(1) + functional.smooth_l1_loss(chosen_values, targets_tensor)
    optimizer.zero_grad()
    loss.mean().backward()
    optimizer.step()


def main() -> None:
    settings = read_settings()
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    random.seed(settings["seed"])
    stopwatch = Stopwatch(settings)
    env = gym.make(settings["env"])
    model = ActorCritic(env.observation_space.shape[0], settings["hidden_sizes"][0], int(env.action_space.n))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
    kept: collections.deque[Sequence] = collections.deque(maxlen=settings["replay_size"] // settings["rollout_length"])
    observation, _ = env.reset(seed=settings["seed"])
    steps, ended = 0, False
    stopwatch.mark(0)
    while steps < settings["total_steps"]:
        sequence: Sequence = []
        for _ in range(settings["rollout_length"]):
            probabilities = model.policy(torch.from_numpy(observation).float())
            action = Categorical(probabilities).sample().item()
            following, reward, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            sequence.append(
                (observation, action, reward / 100.0, probabilities.detach().numpy(), float(not terminated), False)
            )
            observation = following
            steps += 1
            if ended:
                break
        kept.append(sequence)
        if steps > settings["learning_starts"]:
            learn(model, optimizer, [sequence], settings["discount"])
            learn(model, optimizer, random.sample(kept, min(len(kept), settings["batch_size"])), settings["discount"])
        if ended:
            observation, _ = env.reset()
        if steps // MARK_EVERY != (steps - len(sequence)) // MARK_EVERY:
            stopwatch.mark(steps)
    print(json.dumps(stopwatch.report(("torch", "gymnasium", "numpy"))))


if __name__ == "__main__":
    main()
