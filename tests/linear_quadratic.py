"""Exact results for birl/ProbeLinearQuadratic-v0 in float64. A gain K is the policy a = -Ks."""

import numpy as np

from birl.envs.probes import LinearQuadratic

A, B, C, R = LinearQuadratic.A, LinearQuadratic.B, LinearQuadratic.C, LinearQuadratic.R
STARTS = np.eye(2) / 3  # E[s sᵀ] of starts uniform in [-1, 1]²


def riccati(steps: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """P such that -sᵀPs is the best return of so many steps, and the gain of each step in order."""
    P = np.zeros((2, 2))
    gains = []
    for _ in range(steps):
        gains.append(np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A))
        P = C + A.T @ P @ (A - B @ gains[-1])
    return P, gains[::-1]


def values_of(gain: np.ndarray, discount: float = 1.0, steps: int = 5000) -> np.ndarray:
    """P such that -sᵀPs is this gain's discounted return of so many steps.

    P = Σ_t γ^t (Mᵗ)ᵀ(C + KᵀRK)Mᵗ with M = A - BK.
    """
    P = np.zeros((2, 2))
    moved = np.eye(2)
    for t in range(steps):
        P = P + discount**t * moved.T @ (C + gain.T @ R @ gain) @ moved
        moved = (A - B @ gain) @ moved
    return P


def visits_of(gain: np.ndarray, discount: float, steps: int = 5000) -> np.ndarray:
    """Σ_t γ^t E[s_t s_tᵀ] from the starts."""
    total = np.zeros((2, 2))
    now = STARTS
    for t in range(steps):
        total = total + discount**t * now
        now = (A - B @ gain) @ now @ (A - B @ gain).T
    return total


def mean_return(gain: np.ndarray, discount: float = 1.0, steps: int = 5000) -> float:
    """The mean return of a gain over the starts."""
    return -float(np.trace(values_of(gain, discount, steps) @ STARTS))


def mean_return_with(gain: np.ndarray, constant: float, steps: int) -> float:
    """Mean return of a = -Ks + c. Starts have mean 0, so the cost of c from 0 is added."""
    cost = 0.0
    place = np.zeros(2)
    for _ in range(steps):
        action = constant - gain @ place
        cost += place @ C @ place + action @ R @ action
        place = A @ place + B @ action
    return mean_return(gain, steps=steps) - float(cost)


def slopes_of(gain: np.ndarray, discount: float) -> np.ndarray:
    """The matrix G with which Gs is ∇_a Q(s, a) at a = -Ks: 2((R + γBᵀPB)K - γBᵀPA)."""
    P = values_of(gain, discount)
    return 2 * ((R + discount * B.T @ P @ B) @ gain - discount * B.T @ P @ A)
