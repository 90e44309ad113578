"""What a check of an environment reports."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that is right or wrong with an environment, and what to do about it."""

    level: Literal["ok", "warning", "error"]
    title: str
    explanation: str


def ok(title: str, explanation: str) -> Finding:
    """A finding that needs no action."""
    return Finding("ok", title, explanation)


def warning(title: str, explanation: str) -> Finding:
    """A finding about something that still trains, but may do so badly."""
    return Finding("warning", title, explanation)


def error(title: str, explanation: str) -> Finding:
    """A finding about something that must be fixed before training."""
    return Finding("error", title, explanation)
