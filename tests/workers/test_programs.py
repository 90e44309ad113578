"""Programs that run to their end, and the signals that are passed on to them."""

from birl.workers.child import SignalRelay


class Receiver:
    """Notes the signals that it gets; while it gets the first, this process receives another."""

    def __init__(self, signals: list[int], another: int | None = None) -> None:
        self.got: list[int] = []
        self._signals = signals
        self._another = another

    def send(self, number: int) -> None:
        self.got.append(number)
        if self._another is not None:
            self._signals.append(self._another)
            self._another = None


def test_every_program_gets_each_signal_once_also_one_that_comes_while_others_are_sent():
    signals: list[int] = []
    receivers = [Receiver(signals, another=15), Receiver(signals)]
    relay = SignalRelay(signals)
    relay.pass_on(receivers)
    signals.append(2)
    for _ in range(3):
        relay.pass_on(receivers)
    assert [receiver.got for receiver in receivers] == [[2, 15], [2, 15]]
