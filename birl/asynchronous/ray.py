"""Work shared out to the machines of a Ray cluster. The only file that imports ray, and only once a
run asks for it.

An actor that died comes back empty. So whatever one must know to go on is sent by this process,
which keeps it: weights, seeds, counters, statistics. A replacement claims no processor: if its
machine is gone, it shares one with others on the machines that are left.
"""

import functools
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from birl.accel.devices import prepare_jax
from birl.asynchronous.actor_learner import (
    ActorLearner,
    Result,
    SharedParameters,
    Weights,
    Work,
    combined,
    episodes_of,
    not_exact,
    open_learner,
    run_worker_step,
    seed_of,
)
from birl.asynchronous.processes import ONE_THREAD
from birl.config import ConfigError, require
from birl.errors import InexactResume, snapshot_errors
from birl.maths.keys import numbered
from birl.types import Metrics, Snapshot
from birl.workers.faults import Fault, Faults
from birl.workers.main import explained
from birl.workers.process import Failure
from birl.workers.supervisor import START_TIMEOUT

# What its daemons say of a lost actor or machine, 20 lines each time; Fault says it in one. Ray
# reads this when it is imported.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
# How long to wait for word on why an actor does not answer: on a busy machine it comes after more
# than the second that is usual.
os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "10000")
try:
    import ray
except ImportError as problem:
    raise ConfigError("Ray is not installed: pip install 'birl[ray]', or train without it") from problem

CONNECT_SECONDS = 10.0
GLANCE = 0.5  # seconds between looks for those that take too long
OUT_OF_REACH = "it cannot be reached: its process, its machine or the network between is gone"
quiet_init = functools.partial(ray.init, log_to_driver=False, logging_level=logging.ERROR)

Answer = TypeVar("Answer")


@contextmanager
def connected(address: str | None, processors: int) -> Iterator[None]:
    """Connected to the cluster at this address; if None, to one on this machine, which is started
    here and ends here.

    A connection that the user's own program has made is used as it is.
    """
    if ray.is_initialized():
        require_processors(address, processors)
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork")  # JAX warns, but Ray's forks become other programs at once
            _connect(address, processors)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray takes it, but a run saves itself when it comes
        require_processors(address, processors)
        yield
    finally:
        ray.shutdown()


def _connect(address: str | None, processors: int) -> None:
    if address is None:
        # As many processors as actors, or those beyond the machine's own would wait for ever.
        quiet_init("local", num_cpus=max(processors, os.cpu_count() or 1), include_dashboard=False)
        return
    try:
        require_reachable(address)
        quiet_init(address)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as problem:
        remedy = "start one there by `ray start --head`, or leave ray_address out for a cluster on this machine alone"
        if os.environ.get("RAY_AUTH_MODE") != "token":  # Ray shows its token to an address only if it is told to
            remedy += (
                "; if that cluster has a token, set RAY_AUTH_MODE=token and put its token into ~/.ray/auth_token here"
            )
        raise ConfigError(f"env.ray_address {address!r}: no cluster answers there ({problem}); {remedy}") from problem


def require_reachable(address: str) -> None:
    """Raise OSError if nothing listens there: Ray would try for more than a minute."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def require_processors(address: str | None, processors: int) -> None:
    """Raise ConfigError if the cluster is too small: actors that find no place would wait for
    ever.
    """
    present = int(ray.cluster_resources().get("CPU", 0))
    remedy = f"ask for {present} at most, or add machines by `ray start --address`"
    require(
        present >= processors,
        f"{processors} Ray actors need a processor each, and the cluster at {address} has {present}; {remedy}",
    )


class Reply(NamedTuple):
    """An actor's answer, and where it came from."""

    value: Any  # a Failure if it raised
    pid: int
    machine: str


def replying(method: Callable[..., Answer]) -> Callable[..., Reply]:
    """A method of an actor whose errors are answers as well: so they arrive whole, and the actor
    lives on.
    """

    @functools.wraps(method)
    def reply(*arguments: Any) -> Reply:
        try:
            value: Any = method(*arguments)
        except BaseException as error:  # also an environment's sys.exit
            value = explained(error)
        return Reply(value, os.getpid(), ray.util.get_node_ip_address())

    return reply


class PendingCall(NamedTuple):
    """Something that an actor was asked."""

    reference: Any
    seconds: float  # that it may take
    deadline: float


class Actors:
    """Actors by number, on whatever machines. What they were asked they answer in `receive`, as it
    comes.
    """

    def __init__(self, count: int) -> None:
        self.places = [(0, "")] * count  # process and machine of each, once it was heard of
        self._actors: dict[int, Any] = {}
        self._pending: dict[int, PendingCall] = {}
        self.closed = False

    def start(self, index: int, kind: type, *arguments: Any) -> None:
        """A new actor of this kind, in place of the one that had this number."""
        processors = 0 if index in self._actors else 1
        self.end(index)
        options = {"num_cpus": processors, "scheduling_strategy": "SPREAD", "runtime_env": {"env_vars": ONE_THREAD}}
        self._actors[index] = ray.remote(kind).options(**options).remote(*arguments)

    def ask(self, index: int, question: Callable[[Any], Any], seconds: float) -> None:
        """Ask by calling one of the actor's methods: `lambda actor: actor.METHOD.remote(...)`."""
        self._pending[index] = PendingCall(question(self._actors[index]), seconds, time.monotonic() + seconds)

    def receive(self) -> tuple[int, Any]:
        """(who, its answer) of who was first; a Failure for who raised, died or took too long."""
        while True:
            for index, pending in self._pending.items():
                if time.monotonic() > pending.deadline and not ray.wait([pending.reference], timeout=0)[0]:
                    del self._pending[index]
                    return index, Failure(f"no answer within {pending.seconds:g} seconds{self._free(index)}")
            waiting = {
                pending.reference: index for index, pending in self._pending.items()
            }  # who was asked first comes first
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=GLANCE)
            if ready:
                index = waiting[ready[0]]
                del self._pending[index]
                return index, self._answer(index, ready[0])

    def end(self, index: int) -> None:
        """Kill this actor, whatever it is doing."""
        self._pending.pop(index, None)
        if index in self._actors:
            ray.kill(self._actors[index])

    def close(self) -> None:
        """Kill them all."""
        self.closed = True
        for index in list(self._actors):
            self.end(index)

    def _answer(self, index: int, reference: Any) -> Any:
        try:
            reply: Reply = ray.get(reference)
        except ray.exceptions.RayError as problem:
            return Failure(cause_of(problem), str(problem))
        self.places[index] = reply.pid, reply.machine
        return reply.value

    def _free(self, index: int) -> str:
        """A reason why one that was never heard of may still be waiting."""
        if self.places[index] != (0, ""):
            return ""
        free, present = (int(found.get("CPU", 0)) for found in (ray.available_resources(), ray.cluster_resources()))
        return f"; {free} of the cluster's {present} processors are free"


def put(value: Any) -> Any:
    """A reference to a value that several actors are sent: it travels once to each machine."""
    return ray.put(value)


def cause_of(problem: Exception) -> str:
    """Ray's words on why an actor did not answer, without the advice that goes with them."""
    if isinstance(problem, ray.exceptions.ActorUnavailableError):
        return OUT_OF_REACH
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    reasons = [line.partition(" because ")[2].partition(". ")[0] for line in lines if " because " in line]
    return (reasons or lines or [type(problem).__name__])[0]


def machine_died(failure: Failure) -> bool:
    """Whether the whole machine is gone, or may be: then it says nothing of the actor that it did
    not even start.
    """
    return "node has died" in failure.reason or failure.reason == OUT_OF_REACH  # the former are Ray's words


class LearnerActor:
    """An actor-learner on some machine."""

    def __init__(self, work: Work, index: int, key: np.ndarray, seed: int) -> None:
        self.work, self.index, self.key, self.seed = work, index, key, seed
        self.learner: ActorLearner | None = None

    @replying
    def turn(self, weights: Weights) -> Result:
        """What it found with these weights; at the first turn it makes its environments."""
        if self.learner is None:
            prepare_jax()
            self.learner = open_learner(self.work, self.index, self.key, self.seed)
        result, self.learner = run_worker_step(self.learner, weights, self.work)
        return result


class RayPool:
    """Actor-learners in Ray actors. This process has the board: it writes to it what they answer,
    as it comes.
    """

    def __init__(self, work: Work, shared: SharedParameters, snapshot: Snapshot | None) -> None:
        self.work, self.shared, self.count = work, shared, len(shared.keys)
        self.names: tuple[str, ...] = ()
        self.actors = Actors(self.count)
        self._faults = Faults(self.count)
        self._generations, self._ready = [0] * self.count, [False] * self.count
        self._first_steps, self._episodes = int(shared.env_steps.sum()), 0
        self._stack = ExitStack()
        if snapshot is not None:
            with snapshot_errors():
                self._episodes = int(snapshot.values["episodes"])
            warnings.warn(f"this resume is not exact: {not_exact('a cluster', work)}", InexactResume, stacklevel=3)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(connected(self.work.config.env.ray_address, self.count))
            stack.callback(self.actors.close)
            for index in range(self.count):
                self._start(index)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def faults(self) -> list[Fault]:
        """Every replacement of an actor-learner so far."""
        return self._faults.all

    def run(self, env_steps: int) -> SharedParameters:
        while self.shared.env_steps.sum() < env_steps:
            index, answer = self.actors.receive()
            if isinstance(answer, Failure):
                self._replace(index, answer)
                continue
            self.work.update(self.shared, answer, self.work.config)
            self.shared.write(index, answer)
            self.names, self._ready[index] = tuple(answer.metrics), True
            self._ask(index, self.work.config.env.step_timeout)
        return self.shared.copy()

    def metrics(self) -> Metrics:
        metrics = combined(self.shared.metrics, self.names)
        return metrics | {"episode/count": self._episodes + metrics["episode/count"]}

    def snapshot(self) -> Snapshot:
        return Snapshot(
            {}, {"episodes": self.metrics()["episode/count"]}, exact=False, reason=not_exact("a cluster", self.work)
        )

    def _start(self, index: int) -> None:
        generation = self._generations[index]
        seed = seed_of(self.work.config.run.seed, index, self._first_steps, generation)
        key = numbered(self.shared.keys[index], generation)  # not the draws that came before the actor was replaced
        self.actors.start(index, LearnerActor, self.work, index, key, seed)
        self._ask(index, START_TIMEOUT)

    def _ask(self, index: int, seconds: float) -> None:
        weights = self.shared.read()
        self.actors.ask(index, lambda actor: actor.turn.remote(weights), seconds)

    def _replace(self, index: int, failure: Failure) -> None:
        """Another actor: weights, statistics and counters are on the board, and go to it with its
        first turn.
        """
        pid, machine = self.actors.places[index]
        fault = Fault("actor-learner", index, int(self.shared.env_steps.sum()), pid, failure.reason, machine)
        started = self._ready[index] or self._generations[index] > 0 or machine_died(failure)
        episodes = episodes_of(self.shared, self.names, index)
        self._faults.report(fault, failure, episodes > 0, started)
        self._episodes += episodes
        self._generations[index] += 1
        self._start(index)


def call_each(
    function: Callable[[Any], Answer], arguments: Sequence[Any], address: str | None, at_once: int
) -> Iterator[tuple[int, Answer | Failure]]:
    """(which argument, what the function makes of it) as they finish, each in a new process on a
    processor of the cluster.

    One whose machine dies is called again on another, as Ray does by itself, three times at most.
    With an address, the cluster decides how many run at once.
    """
    with connected(address, at_once if address is None else 1):
        remote = ray.remote(num_cpus=1, max_calls=1, runtime_env={"env_vars": ONE_THREAD})(function)
        running = {remote.remote(argument): index for index, argument in enumerate(arguments)}
        while running:
            for reference in ray.wait(list(running), num_returns=1)[0]:
                try:
                    answer: Answer | Failure = ray.get(reference)
                except ray.exceptions.RayError as problem:
                    answer = Failure(cause_of(problem), str(problem))
                yield running.pop(reference), answer
