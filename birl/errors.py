"""What can go wrong that a person can mend. The message says what was wrong, with the value, and what to do."""


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, missing, or does not fit."""


class NonFiniteError(RuntimeError):
    """A NaN or infinity where a number belongs; training on it would destroy the network without a word."""
