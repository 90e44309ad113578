"""What runs in the process of an actor-learner: its loop, until the run's steps are done."""

import fcntl
import os
import time
from collections.abc import Iterator

from birl.asynchronous.actor_learner import open_actor_learner, run_worker_step
from birl.asynchronous.processes import FINISHED, PAUSE_SECONDS, Assignment, Control, map_shared
from birl.maths.keys import numbered
from birl.speed import prepare_jax
from birl.workers.child import as_failure, connect_to_parent
from birl.workers.process import ERROR, VALUE


def main(calls: int, answers: int, lifeline: int, memory: int) -> None:
    """Learn until the run's steps are done or the parent ends this process.

    The arguments are file descriptors.
    """
    requests, replies = connect_to_parent(calls, answers, lifeline, memory)
    try:
        os.read(calls, 1)
        _, assignment = requests.recv()
        for names in learn(assignment, memory):
            os.write(answers, VALUE)
            replies.send(names)
    except BaseException as error:  # also an environment's sys.exit
        os.write(answers, ERROR)
        replies.send(tuple(as_failure(error)))


def learn(assignment: Assignment, memory: int) -> Iterator[tuple[str, ...]]:
    """The loop of an actor-learner; yields the names of its metrics once it is ready to learn."""
    work = assignment.work
    number = assignment.number
    shared, control = map_shared(memory, assignment.shapes)
    prepare_jax()
    key = numbered(shared.keys[number], assignment.generation)  # a replacement does not repeat old draws
    learner = open_actor_learner(work, number, key, assignment.seed)
    # One process at a time: the first compiles, and the others find its programs on disk.
    fcntl.lockf(memory, fcntl.LOCK_EX)
    weights = shared.read()  # θ' ← θ
    result, learner = run_worker_step(learner, weights, work)  # act; dθ
    fcntl.lockf(memory, fcntl.LOCK_UN)
    control.heartbeats[number] = time.monotonic()
    yield tuple(result.metrics)
    control.learning[number] = True
    while True:
        # The loop begins in the middle of a round: the first worker step is above, because it shows
        # that the actor-learner works.
        wait_while_paused(control, number)
        work.apply_gradients(shared, result, work.config)  # update θ using dθ
        shared.write(number, result)  # T ← T + the steps taken
        if shared.env_steps.sum() >= work.config.run.total_steps:
            break
        control.heartbeats[number] = time.monotonic()
        weights = shared.read()  # θ' ← θ
        result, learner = run_worker_step(learner, weights, work)  # act; dθ
    control.paused[number] = FINISHED
    learner.envs.close()


def wait_while_paused(control: Control, number: int) -> None:
    """Wait until the parent has copied the parameters."""
    while request := int(control.pause_request[0]):
        control.paused[number] = request
        control.heartbeats[number] = time.monotonic()
        time.sleep(PAUSE_SECONDS)
