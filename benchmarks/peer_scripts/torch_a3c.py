"""A3C as PyTorch tutorials write it (minimalRL's pattern): processes, a shared model, Adam.

Each worker copies the shared model, acts one step at a time with PyTorch's distributions, and after
a few steps puts its gradients into the shared model and steps the optimiser. Measured: see
measure.py.
"""

import json
import time

import gymnasium as gym
import torch
import torch.multiprocessing as mp
from measure import Stopwatch, read_settings
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional

LOOK_EVERY = 0.05  # seconds


class ActorCritic(nn.Module):
    """One hidden layer for both, as the pattern has it."""

    def __init__(self, inputs: int, hidden: int, actions: int):
        super().__init__()
        self.hidden, self.policy_head, self.value_head = (
            nn.Linear(inputs, hidden),
            nn.Linear(hidden, actions),
            nn.Linear(hidden, 1),
        )

    def policy(self, x: torch.Tensor, axis: int = 0) -> torch.Tensor:
        return functional.softmax(self.policy_head(functional.relu(self.hidden(x))), dim=axis)

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return self.value_head(functional.relu(self.hidden(x)))


def work(shared: ActorCritic, number: int, counts: torch.Tensor, settings: dict) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(number)
    env = gym.make(settings["env"])
    inputs, actions = env.observation_space.shape[0], int(env.action_space.n)
    own = ActorCritic(inputs, settings["hidden_sizes"][0], actions)
    own.load_state_dict(shared.state_dict())
    optimizer = torch.optim.Adam(shared.parameters(), lr=settings["learning_rate"])
    observation, _ = env.reset(seed=number)
    ended = False
    while counts.sum() < settings["total_steps"]:
        observations, taken, rewards = [], [], []
        for _ in range(settings["rollout_length"]):
            action = Categorical(own.policy(torch.from_numpy(observation).float())).sample().item()
            following, reward, terminated, truncated, _ = env.step(action)
            observations.append(torch.from_numpy(observation).float())
            taken.append([action])
            rewards.append(reward / 100.0)
            observation, ended = following, terminated or truncated
            counts[number] += 1
            if ended:
                break
        returns, total = [], 0.0 if terminated else own.value(torch.from_numpy(observation).float()).item()
        for reward in rewards[::-1]:
            total = settings["discount"] * total + reward
            returns.append([total])
        states, actions_taken = torch.stack(observations), torch.tensor(taken)
        targets = torch.tensor(returns[::-1], dtype=torch.float)
        advantages = targets - own.value(states)
        chosen = own.policy(states, 1).gather(1, actions_taken)
        loss = -torch.log(chosen) * advantages.detach() + functional.smooth_l1_loss(own.value(states), targets.detach())
        optimizer.zero_grad()
        own.zero_grad()
        loss.mean().backward()
        for ours, theirs in zip(shared.parameters(), own.parameters(), strict=True):
            ours._grad = theirs.grad
        optimizer.step()
        own.load_state_dict(shared.state_dict())
        if ended:
            observation, _ = env.reset()


def main() -> None:
    settings = read_settings()
    stopwatch = Stopwatch(settings)
    mp.set_start_method("spawn")
    env = gym.make(settings["env"])
    shared = ActorCritic(env.observation_space.shape[0], settings["hidden_sizes"][0], int(env.action_space.n))
    shared.share_memory()
    counts = torch.zeros(settings["actor_learners"], dtype=torch.int64).share_memory_()
    stopwatch.mark(0)
    workers = [
        mp.Process(target=work, args=(shared, number, counts, settings)) for number in range(settings["actor_learners"])
    ]
    for worker in workers:
        worker.start()
    while (done := int(counts.sum())) < settings["total_steps"]:
        if done:
            stopwatch.mark(done)
        time.sleep(LOOK_EVERY)
    stopwatch.mark(int(counts.sum()))
    for worker in workers:
        worker.join()
    print(json.dumps(stopwatch.report(("torch", "gymnasium", "numpy"))))


if __name__ == "__main__":
    main()
