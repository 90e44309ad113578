"""What runs in an actor-learner's process: its turns, one after the other, until the steps are
done.
"""

import fcntl
import os
import time
from collections.abc import Iterator

from birl.accel.devices import prepare_jax
from birl.asynchronous.actor_learner import open_learner, run_worker_step
from birl.asynchronous.processes import BLINK, FINISHED, Assignment, Control, shared_arrays
from birl.maths.keys import numbered
from birl.workers.main import begin_service, explained
from birl.workers.process import ERROR, VALUE


def main(orders: int, answers: int, lifeline: int, memory: int) -> None:
    """Learn until the run's steps are done or the parent ends this process. The numbers are file
    descriptors.
    """
    requests, replies = begin_service(orders, answers, lifeline, memory)
    try:
        os.read(orders, 1)
        _, assignment = requests.recv()
        for names in learn(assignment, memory):
            os.write(answers, VALUE)
            replies.send(names)
    except BaseException as error:  # also an environment's sys.exit
        os.write(answers, ERROR)
        replies.send(tuple(explained(error)))


def learn(assignment: Assignment, memory: int) -> Iterator[tuple[str, ...]]:
    """The actor-learner's loop; yields the names of its metrics once it is ready to learn."""
    work, index = assignment.work, assignment.number
    shared, control = shared_arrays(memory, assignment.kinds)
    prepare_jax()
    key = numbered(shared.keys[index], assignment.generation)  # not the draws that came before the process was replaced
    learner = open_learner(work, index, key, assignment.seed)
    # One at a time: the first compiles, and the others find what it compiled on disk.
    fcntl.lockf(memory, fcntl.LOCK_EX)
    result, learner = run_worker_step(learner, shared.read(), work)
    fcntl.lockf(memory, fcntl.LOCK_UN)
    control.heartbeats[index] = time.monotonic()
    yield tuple(result.metrics)
    control.learning[index] = True
    while True:
        wait_while_paused(control, index)
        work.update(shared, result, work.config)
        shared.write(index, result)
        if shared.env_steps.sum() >= work.config.run.total_steps:
            break
        control.heartbeats[index] = time.monotonic()
        result, learner = run_worker_step(learner, shared.read(), work)
    control.paused[index] = FINISHED
    learner.envs.close()


def wait_while_paused(control: Control, index: int) -> None:
    while ticket := int(control.pause[0]):
        control.paused[index] = ticket
        control.heartbeats[index] = time.monotonic()
        time.sleep(BLINK)
