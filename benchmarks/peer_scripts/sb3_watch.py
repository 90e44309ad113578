"""A callback that reads SB3's own counters once a rollout: it adds nothing to the work that is timed."""

from measure import EPISODES, Stopwatch
from stable_baselines3.common.callbacks import BaseCallback


class Watch(BaseCallback):
    """Marks every update, and ends the training once the wanted return is reached."""

    def __init__(self, stopwatch: Stopwatch):
        super().__init__()
        self.stopwatch = stopwatch

    def _on_rollout_start(self) -> None:
        self.stopwatch.mark(self.num_timesteps)

    def _on_rollout_end(self) -> None:
        # Before the update, which is to the peer's advantage: Birl is asked after it.
        returns = [episode["r"] for episode in self.model.ep_info_buffer][-EPISODES:]
        if len(returns) == EPISODES:
            self.stopwatch.see(sum(returns) / EPISODES, self.num_timesteps)

    def _on_step(self) -> bool:
        return self.stopwatch.reached is None
