"""How long a check may take."""

import time

PATIENCE = 12  # wall time over CPU time, on a busy machine


class TimeBudget:
    """A number of CPU seconds, so that other programs on the machine do not shorten a check.

    A simulator that waits uses no CPU time: the wall time is limited too, to 12 times as much.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._cpu_began = time.process_time()
        self._wall_began = time.monotonic()

    def is_left(self) -> bool:
        """Whether there is time for another step."""
        cpu = time.process_time() - self._cpu_began
        wall = time.monotonic() - self._wall_began
        return cpu < self.seconds and wall < PATIENCE * self.seconds
