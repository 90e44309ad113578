"""Actors on the machines of a Ray cluster. The only file that imports ray, if a run asks for it.

An actor that died comes back empty. So everything it needs to go on is kept in this process and
sent to it: weights, seeds, counters, statistics. A replacement reserves no processor. If its
machine has failed, it shares a processor of the machines that are left.
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
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from birl.config import ConfigError, require
from birl.errors import install_extra
from birl.workers.faults import Failure, as_failure
from birl.workers.supervisor import ONE_THREAD

# Ray prints 20 lines about each lost actor or machine; a Fault says it in one. Ray reads this when
# it is imported.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
# How long to wait for the reason why an actor is lost. On a busy machine the default of one second
# is not enough.
os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "10000")
try:
    import ray
except ImportError as problem:
    raise ConfigError(f"Ray is not installed: {install_extra('ray')}, or train without it") from problem

CONNECT_SECONDS = 10.0
POLL_SECONDS = 0.5  # between checks for calls that have taken too long
OUT_OF_REACH = "it cannot be reached: its process, its machine or the network has failed"
quiet_init = functools.partial(ray.init, log_to_driver=False, logging_level=logging.ERROR)

Answer = TypeVar("Answer")


@contextmanager
def connected(address: str | None, processors: int) -> Iterator[None]:
    """Connect to the cluster at this address, or to a new one on this machine if it is None.

    A cluster that is started here ends here. A connection that the user's program has made is used
    and left open.
    """
    if ray.is_initialized():
        require_processors(address, processors)
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork")  # JAX warns, but what Ray forks runs exec at once
            _connect(address, processors)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray replaces the handler that saves a run
        require_processors(address, processors)
        yield
    finally:
        ray.shutdown()


def _connect(address: str | None, processors: int) -> None:
    if address is None:
        # As many processors as actors, or some actors would wait forever.
        quiet_init("local", num_cpus=max(processors, os.cpu_count() or 1), include_dashboard=False)
        return
    try:
        require_reachable(address)
        quiet_init(address)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as problem:
        remedy = "start one there by `ray start --head`, or leave ray_address out for a cluster on this machine alone"
        if os.environ.get("RAY_AUTH_MODE") != "token":  # only then does Ray send its token
            token = "set RAY_AUTH_MODE=token and put its token into ~/.ray/auth_token here"
            remedy += f"; if that cluster has a token, {token}"
        raise ConfigError(f"env.ray_address {address!r}: no cluster answers there ({problem}); {remedy}") from problem


def require_reachable(address: str) -> None:
    """Raise OSError if nothing listens at this address. Ray itself would try for over a minute."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def require_processors(address: str | None, processors: int) -> None:
    """Raise ConfigError if the cluster is too small: some actors would wait forever."""
    present = int(ray.cluster_resources().get("CPU", 0))
    wrong = f"{processors} Ray actors need a processor each, and the cluster at {address} has {present}"
    remedy = f"ask for {present} at most, or add machines by `ray start --address`"
    require(present >= processors, f"{wrong}; {remedy}")


class Reply(NamedTuple):
    """An actor's answer, and where it runs."""

    value: Any  # a Failure if it raised
    pid: int
    machine: str


def replying(method: Callable[..., Answer]) -> Callable[..., Reply]:
    """Decorator for an actor's method: it returns a Reply, with a Failure for an error.

    So errors arrive complete, and the actor stays alive.
    """

    @functools.wraps(method)
    def reply(*arguments: Any) -> Reply:
        try:
            value: Any = method(*arguments)
        except BaseException as error:  # also an environment's sys.exit
            value = as_failure(error)
        return Reply(value, os.getpid(), ray.util.get_node_ip_address())

    return reply


class PendingCall(NamedTuple):
    """A call that an actor has not answered yet."""

    reference: Any
    seconds: float  # that it may take
    deadline: float


class Actors:
    """Ray actors by number, on any machine. Each has at most one call pending; see `receive`."""

    def __init__(self, count: int) -> None:
        self.places = [(0, "")] * count  # process id and machine of each; (0, "") before its first answer
        self.closed = False
        self._actors: dict[int, Any] = {}
        self._pending: dict[int, PendingCall] = {}

    def start(self, index: int, kind: type, *arguments: Any) -> None:
        """Start a new actor of this class, in place of the one with this number."""
        processors = 0 if index in self._actors else 1
        self.end(index)
        options = {"num_cpus": processors, "scheduling_strategy": "SPREAD", "runtime_env": {"env_vars": ONE_THREAD}}
        self._actors[index] = ray.remote(kind).options(**options).remote(*arguments)

    def call(self, index: int, method: Callable[[Any], Any], seconds: float) -> None:
        """Call a method of an actor: `lambda actor: actor.METHOD.remote(...)`."""
        self._pending[index] = PendingCall(method(self._actors[index]), seconds, time.monotonic() + seconds)

    def receive(self) -> tuple[int, Any]:
        """(number, answer) of the first to answer; a Failure if it raised, died or was too slow."""
        while True:
            for index, pending in self._pending.items():
                if time.monotonic() > pending.deadline and not ray.wait([pending.reference], timeout=0)[0]:
                    del self._pending[index]
                    return index, Failure(f"no answer within {pending.seconds:g} seconds{self._free_processors(index)}")
            # In the order of the calls, so that no actor has to wait forever.
            waiting = {pending.reference: index for index, pending in self._pending.items()}
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
            if ready:
                index = waiting[ready[0]]
                del self._pending[index]
                return index, self._answer(index, ready[0])

    def end(self, index: int) -> None:
        """Kill an actor, whatever it is doing."""
        self._pending.pop(index, None)
        if index in self._actors:
            ray.kill(self._actors[index])

    def close(self) -> None:
        """Kill all actors."""
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

    def _free_processors(self, index: int) -> str:
        """How many processors are free, for an actor that has never answered; else ""."""
        if self.places[index] != (0, ""):
            return ""
        free, present = (int(found.get("CPU", 0)) for found in (ray.available_resources(), ray.cluster_resources()))
        return f"; {free} of the cluster's {present} processors are free"


def put(value: Any) -> Any:
    """A reference to a value that is sent to several actors: it travels once to each machine."""
    return ray.put(value)


def cause_of(problem: Exception) -> str:
    """Ray's reason why an actor did not answer, without Ray's advice."""
    if isinstance(problem, ray.exceptions.ActorUnavailableError):
        return OUT_OF_REACH
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    reasons = [line.partition(" because ")[2].partition(". ")[0] for line in lines if " because " in line]
    return (reasons or lines or [type(problem).__name__])[0]


def machine_died(failure: Failure) -> bool:
    """True if the whole machine may have failed: then the actor itself is not to blame."""
    return "node has died" in failure.reason or failure.reason == OUT_OF_REACH  # the former is Ray's phrase


class Talk(Protocol):
    """Tell this process something, or nothing; the signal that the run has received, or 0."""

    def __call__(self, news: Any = None) -> int: ...


class Messages:
    """An actor between this process and its tasks: the signal for them, the newest news of each."""

    def __init__(self) -> None:
        self._signal = 0
        self._news: dict[int, Any] = {}

    def set_signal(self, number: int) -> None:
        self._signal = number

    def talk(self, index: int, news: Any) -> int:
        if news is not None:
            self._news[index] = news
        return self._signal

    def take_news(self) -> dict[int, Any]:
        news, self._news = self._news, {}
        return news


def run_tasks(
    function: Callable[[Any, Talk], Answer],
    arguments: Iterator[Any],
    address: str | None,
    at_once: int,
    signals: Sequence[int],
    hear: Callable[[int, Any], None] = lambda index, news: None,
) -> Iterator[tuple[int, Answer | Failure] | None]:
    """(position of the argument, result) as tasks finish, and None while none does.

    A task calls the function with its argument and a way to talk to this process, which `hear`s the
    position of the argument and the news. After a signal no other task is started.
    """
    with connected(address, 1):
        messages: Any = ray.remote(Messages).options(num_cpus=0).remote()
        remote: Any = ray.remote(num_cpus=1, max_calls=1, runtime_env={"env_vars": ONE_THREAD})(_call_with_messages)
        numbered = enumerate(arguments)
        running: dict[Any, int] = {}
        told = False
        while True:
            while not signals and len(running) < at_once and (following := next(numbered, None)) is not None:
                index, argument = following
                running[remote.remote(function, argument, index, messages)] = index
            if not running:
                return
            if signals and not told:
                told = True
                ray.get(messages.set_signal.remote(signals[0]))
            for reference in ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)[0]:
                try:
                    answer: Answer | Failure = ray.get(reference)
                except ray.exceptions.RayError as problem:
                    answer = Failure(cause_of(problem), str(problem))
                yield running.pop(reference), answer
            with suppress(ray.exceptions.RayError):  # its machine has failed: the tasks go on unseen
                for index, news in ray.get(messages.take_news.remote()).items():
                    hear(index, news)
            yield None


def _call_with_messages(function: Callable[[Any, Talk], Answer], argument: Any, index: int, messages: Any) -> Answer:
    return function(argument, lambda news=None: ray.get(messages.talk.remote(index, news)))
