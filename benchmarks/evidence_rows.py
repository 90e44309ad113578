"""The rows of evidence that are worth measuring, in the order of their value per CPU-hour."""

from typing import NamedTuple


class EvidenceRow(NamedTuple):
    """A row of RESULTS.md: `birl train ALGORITHM ENV FLAGS`, with seeds 1 to `seeds`."""

    algorithm: str
    env: str
    minutes: float  # a guess of the CPU time of a seed, until one is measured
    compared_with: str  # published scores of the same task
    flags: tuple[str, ...] = ()  # what differs from the preset
    seeds: int = 5

    @property
    def variant(self) -> str:
        return " ".join(self.flags)

    @property
    def name(self) -> str:
        """The name of this row's folder."""
        words = [self.algorithm, self.env, *(flag.strip("-") for flag in self.flags)]
        return "-".join(words).replace("/", "-").replace("=", "-")


MILLION = "1M steps: Tianshou, CleanRL, RL Zoo, rlfromscratch"
SHORT = "200k steps: published intervals of 10 seeds"
CLASSIC = "RL Zoo, SB2 Zoo"

ROWS = (
    # Distributions of returns.
    *(
        EvidenceRow(algorithm, env, minutes, "CleanRL, sb3-contrib, RL Zoo")
        for env, minutes in (("CartPole-v1", 0.5), ("Acrobot-v1", 1.5), ("LunarLander-v3", 3.0))
        for algorithm in ("c51", "qr-dqn")
    ),
    # Algorithms that learn from the replay.
    EvidenceRow("ddpg", "Pendulum-v1", 1.5, CLASSIC),
    EvidenceRow("dqn", "Acrobot-v1", 1.5, CLASSIC),
    EvidenceRow("acer", "CartPole-v1", 1.5, CLASSIC),
    EvidenceRow("dqn", "LunarLander-v3", 3, CLASSIC, seeds=10),
    # Truncated episodes only, then robots that fall.
    *(
        EvidenceRow(algorithm, robot, minutes, MILLION)
        for robot in ("HalfCheetah-v5", "Swimmer-v5", "Reacher-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
        for algorithm, minutes in (("ppo", 3.0), ("a2c", 3.0), ("trpo", 4.0))
    ),
    # Classic tasks whose interval is wide.
    EvidenceRow("trpo", "LunarLander-v3", 1, CLASSIC, seeds=10),
    EvidenceRow("a2c", "LunarLander-v3", 2, CLASSIC, seeds=10),
    EvidenceRow("a2c", "CartPole-v1", 1, CLASSIC, ("--hide-velocities", "--core", "lstm"), seeds=10),
    EvidenceRow("qac", "CartPole-v1", 1, CLASSIC, seeds=10),
    EvidenceRow("ddpg", "LunarLanderContinuous-v3", 4, CLASSIC, seeds=10),
    EvidenceRow("acer", "LunarLander-v3", 8, CLASSIC, seeds=10),
    # Off-policy, at the budget of which intervals are published.
    *(
        EvidenceRow(algorithm, robot, minutes, SHORT, ("--total-steps", "200000"))
        for robot in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
        for algorithm, minutes in (("td3", 12.0), ("ddpg", 12.0), ("sac", 25.0))
    ),
    *(
        EvidenceRow("sac", robot, 130.0, MILLION, ("--total-steps", "1000000"))
        for robot in ("HalfCheetah-v5", "Hopper-v5")
    ),
)
