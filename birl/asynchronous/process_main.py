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
    index = assignment.number
    shared, control = map_shared(memory, assignment.shapes)
    prepare_jax()
    key = numbered(shared.keys[index], assignment.generation)  # a replacement does not repeat old draws
    learner = open_actor_learner(work, index, key, assignment.seed)
    # One process at a time: the first compiles, and the others find its programs on disk.
    fcntl.lockf(memory, fcntl.LOCK_EX)
    result, learner = run_worker_step(learner, shared.read(), work)
    fcntl.lockf(memory, fcntl.LOCK_UN)
    control.heartbeats[index] = time.monotonic()
    yield tuple(result.metrics)
    control.learning[index] = True
    while True:
        wait_while_paused(control, index)
        work.apply_gradients(shared, result, work.config)
        shared.write(index, result)
        if shared.env_steps.sum() >= work.config.run.total_steps:
            break
        control.heartbeats[index] = time.monotonic()
        result, learner = run_worker_step(learner, shared.read(), work)
    control.paused[index] = FINISHED
    learner.envs.close()


def wait_while_paused(control: Control, index: int) -> None:
    """Wait until the parent has copied the parameters."""
    while ticket := int(control.pause[0]):
        control.paused[index] = ticket
        control.heartbeats[index] = time.monotonic()
        time.sleep(PAUSE_SECONDS)
