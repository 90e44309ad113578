"""The papers' explicit sums in plain NumPy loops and float64: slow, and nothing from birl.

Arrays are [T, B]. next_values[t] is the value of the state that followed step t.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np


def episode_rows(t: int, b: int, terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray) -> list[int]:
    """The rows from t to the end of its episode or of the rollout; none if row t is not valid."""
    rows = []
    for row in range(t, len(valid)):
        if not valid[row, b]:
            break
        rows.append(row)
        if terminated[row, b] or truncated[row, b]:
            break
    return rows


def recurrence_sums(x: np.ndarray, a: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """Σ_k a_t ... a_{k-1} x_k + a_t ... a_{T-1} initial."""
    T, B = x.shape
    y = np.zeros((T, B))
    for t, b in np.ndindex(T, B):
        y[t, b] = sum(math.prod(a[t:k, b]) * x[k, b] for k in range(t, T)) + math.prod(a[t:, b]) * initial[b]
    return y


def n_step_returns(rewards, terminated, truncated, valid, next_values, discount: float, n: int) -> np.ndarray:
    """Σ_{k<m} γ^k r_{t+k} + γ^m V(s_{t+m}), where m is n or what is left of the episode."""
    returns = np.zeros(rewards.shape)
    for t, b in np.ndindex(*rewards.shape):
        rows = episode_rows(t, b, terminated, truncated, valid)[:n]
        if rows:
            last = rows[-1]
            bootstrap = 0.0 if terminated[last, b] else next_values[last, b]
            returns[t, b] = (
                sum(discount**k * rewards[row, b] for k, row in enumerate(rows)) + discount ** len(rows) * bootstrap
            )
    return returns


def discounted_returns(rewards, terminated, truncated, valid, next_values, discount: float) -> np.ndarray:
    """Σ_k γ^k r_{t+k} to the end of the episode, and γ^m V(s_{t+m}) if that end is a cut."""
    return n_step_returns(rewards, terminated, truncated, valid, next_values, discount, n=len(rewards))


def sarsa_targets(rewards, action_values, terminated, valid, discount: float) -> np.ndarray:
    """r_t + γ Q(s_{t+1}, a_{t+1}) (Sutton & Barto 2018, eq. 6.7); NaN without a next action."""
    targets = np.full(rewards.shape, np.nan)
    for t, b in np.ndindex(*rewards.shape):
        if valid[t, b] and terminated[t, b]:
            targets[t, b] = rewards[t, b]
        elif valid[t, b] and t + 1 < len(rewards):
            targets[t, b] = rewards[t, b] + discount * action_values[t + 1, b]
    return targets


def gae(rewards, values, next_values, terminated, truncated, valid, discount: float, gae_lambda: float) -> np.ndarray:
    """Σ_l (γλ)^l δ_{t+l} (Schulman et al. 2016, eq. 16)."""
    advantages = np.zeros(rewards.shape)
    for t, b in np.ndindex(*rewards.shape):
        for row in episode_rows(t, b, terminated, truncated, valid):
            error = rewards[row, b] + (0.0 if terminated[row, b] else discount * next_values[row, b]) - values[row, b]
            advantages[t, b] += (discount * gae_lambda) ** (row - t) * error
    return advantages


def vtrace(
    rewards,
    values,
    next_values,
    terminated,
    truncated,
    valid,
    log_ratios,
    discount: float,
    gae_lambda: float,
    clip_rho: float,
    clip_c: float,
) -> tuple[np.ndarray, np.ndarray]:
    """v_t = V(s_t) + Σ_k γ^{k-t} (Π_{i=t}^{k-1} c_i) ρ_k δ_k (Espeholt et al. 2018, eq. 1).

    Also returns the advantages ρ_t (r_t + γ v_{t+1} - V(s_t)).
    """
    ratios = np.exp(log_ratios)
    rho = np.minimum(clip_rho, ratios)
    c = gae_lambda * np.minimum(clip_c, ratios)
    targets = np.array(values, np.float64)
    for t, b in np.ndindex(*rewards.shape):
        for row in episode_rows(t, b, terminated, truncated, valid):
            error = rewards[row, b] + (0.0 if terminated[row, b] else discount * next_values[row, b]) - values[row, b]
            targets[t, b] += discount ** (row - t) * math.prod(c[t:row, b]) * rho[row, b] * error

    advantages = np.zeros(rewards.shape)
    for t, b in np.ndindex(*rewards.shape):
        rows = episode_rows(t, b, terminated, truncated, valid)
        if rows:
            ahead = 0.0 if terminated[t, b] else next_values[t, b]
            if len(rows) > 1:
                ahead = (1.0 - gae_lambda) * next_values[t, b] + gae_lambda * targets[t + 1, b]
            advantages[t, b] = rho[t, b] * (rewards[t, b] + discount * ahead - values[t, b])
    return targets, advantages


def retrace(
    rewards, action_values, next_values, terminated, truncated, valid, log_ratios, discount: float, trace_lambda: float
) -> np.ndarray:
    """Retrace targets (Munos et al. 2016, eq. 3).

    Q_t + Σ_k γ^{k-t} (Π_{s=t+1}^{k} λ min(1, ρ_s)) (r_k + γ V(s_{k+1}) - Q_k).
    """
    c = trace_lambda * np.minimum(1.0, np.exp(log_ratios))
    targets = np.array(action_values, np.float64)
    for t, b in np.ndindex(*rewards.shape):
        for row in episode_rows(t, b, terminated, truncated, valid):
            error = (
                rewards[row, b]
                + (0.0 if terminated[row, b] else discount * next_values[row, b])
                - action_values[row, b]
            )
            targets[t, b] += discount ** (row - t) * math.prod(c[t + 1 : row + 1, b]) * error
    return targets


def softmax(logits: np.ndarray) -> np.ndarray:
    """exp(l_a) / Σ exp(l), over the last axis."""
    weights = np.exp(np.asarray(logits, np.float64))
    return weights / weights.sum(axis=-1, keepdims=True)


def normal_density(x: np.ndarray, mean: float, std: float) -> np.ndarray:
    """exp(-(x - μ)² / 2σ²) / (σ √2π)."""
    return np.exp(-((np.asarray(x, np.float64) - mean) ** 2) / (2.0 * std**2)) / (std * math.sqrt(2.0 * math.pi))


def integral(function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    """∫ f by the trapezoid rule on a fine grid."""
    grid = np.linspace(low, high, 20_001)
    return float(np.trapezoid(function(grid), grid))


def joint_actions(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every combination of one action from each of sizes."""
    yield from np.ndindex(*sizes)
