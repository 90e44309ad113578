"""Actor-learners one after another in this process. The same seed gives the same run."""

from typing import Self

import numpy as np

from birl.asynchronous.actor_learner import ActorLearner, Work, open_actor_learner, run_worker_step
from birl.asynchronous.parameters import SharedParameters, Weights
from birl.asynchronous.report import combine_metrics
from birl.errors import snapshot_errors
from birl.maths.count import WRAP_AT, count_of
from birl.types import Metrics, Snapshot
from birl.workers.supervisor import child_seed


class SerialPool:
    """Actor-learners that take steps in turn.

    Each acts with the weights as they were after its own last step. So its gradient is as old as
    it would be in n processes of the same speed: the n - 1 others have updated since.
    """

    def __init__(self, work: Work, shared: SharedParameters, snapshot: Snapshot | None) -> None:
        self.work = work
        self.shared = shared
        self.learners: list[ActorLearner] = []
        self.weights = [shared.read() for _ in range(work.config.learners.actor_learners)]
        self.next_learner = 0
        self.names: tuple[str, ...] = ()  # of the metrics
        self._snapshot = snapshot

    def __enter__(self) -> Self:
        try:
            for number in range(self.work.config.learners.actor_learners):
                snapshot = None if self._snapshot is None else _part_of(self._snapshot, number)
                seed = child_seed(self.work.config.run.seed, number)
                key = self.shared.keys[number].copy()
                self.learners.append(open_actor_learner(self.work, number, key, seed, snapshot))
        except BaseException:
            self._close()
            raise
        if self._snapshot is not None:
            self._restore(self._snapshot)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(self, env_steps: int) -> SharedParameters:
        """Learn until so many environment steps are done in all; a copy of the parameters then."""
        while self.shared.env_steps.sum() < env_steps:
            number = self.next_learner
            result, self.learners[number] = run_worker_step(self.learners[number], self.weights[number], self.work)
            self.work.apply_gradients(self.shared, result, self.work.config)
            self.shared.write(number, result)
            self.weights[number] = self.shared.read()
            self.names = tuple(result.metrics)
            self.next_learner = (number + 1) % len(self.learners)
        return self.shared.copy()

    def metrics(self) -> Metrics:
        """The metrics of the actor-learners' last steps."""
        return combine_metrics(self.shared.metrics, self.names)

    def snapshot(self) -> Snapshot:
        """Everything needed to continue from the parameters that `run` returned."""
        arrays: dict[str, np.ndarray] = {"metrics": self.shared.metrics.copy()}
        parts = []
        for learner, weights in zip(self.learners, self.weights, strict=True):
            part = learner.snapshot()
            parts.append(part)
            arrays |= {f"learners/{learner.number}/{name}": array for name, array in part.arrays.items()}
            kept = {"network": weights.network, "older": weights.target_weights, "normalizers": weights.normalizers}
            arrays |= {f"weights/{learner.number}/{name}": array for name, array in kept.items()}
        counts = [[int(weights.env_steps), int(weights.gradient_steps)] for weights in self.weights]
        learners = [part.values for part in parts]
        values = {"turn": self.next_learner, "names": list(self.names), "learners": learners, "weights": counts}
        reasons = [part.reason for part in parts if not part.exact]
        return Snapshot(arrays, values, not reasons, "; ".join(reasons[:1]))

    @snapshot_errors()
    def _restore(self, snapshot: Snapshot) -> None:
        self.next_learner = snapshot.values["turn"]
        self.names = tuple(snapshot.values["names"])
        self.shared.metrics[:] = snapshot.arrays["metrics"]
        for number, (env_steps, gradient_steps) in enumerate(snapshot.values["weights"]):
            self.weights[number] = Weights(
                network=snapshot.arrays[f"weights/{number}/network"],
                target_weights=snapshot.arrays[f"weights/{number}/older"],
                normalizers=snapshot.arrays[f"weights/{number}/normalizers"],
                env_steps=count_of(env_steps),
                gradient_steps=np.int32(gradient_steps % WRAP_AT),
            )

    def _close(self) -> None:
        for learner in self.learners:
            learner.envs.close()


@snapshot_errors()
def _part_of(snapshot: Snapshot, number: int) -> Snapshot:
    """The snapshot of one actor-learner."""
    arrays = snapshot.arrays_under(f"learners/{number}/")
    return Snapshot(arrays, snapshot.values["learners"][number], snapshot.exact, snapshot.reason)
