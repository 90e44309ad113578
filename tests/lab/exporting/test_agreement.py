"""Exported policies act like Birl's: every algorithm, core, encoder, space and activation once.

benchmarks/export_agreement.py has all combinations, with 1,000 observations each.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
CASES = {
    "reinforce": {"actions": "MultiDiscrete", "core": "lstm", "masks": True},
    "qac": {"actions": "MultiBinary", "more": (("activation", "relu"),)},
    "a2c": {"observations": "image, channels first", "actions": "Box", "encoder": "conv_only"},
    "a3c": {"observations": "Discrete", "core": "lnlstm"},
    "ppo": {"observations": "Dict", "actions": "Tuple", "encoder": "cnn_small", "masks": True},
    "trpo": {"observations": "image of numbers", "encoder": "cnn_2013", "core": "gru"},
    "dqn": {"observations": "image", "encoder": "cnn", "masks": True, "more": (("dueling", True),)},
    "qr-dqn": {"core": "lstm", "masks": True, "more": (("dueling", True),)},
    "c51": {"core": "lstm", "more": (("dueling", True),)},
    "dpg": {"actions": "Box", "more": (("features", "quadratic"),)},
    "ddpg": {"actions": "Box", "more": (("noise", "ou"), ("activation", "elu"))},
    "td3": {"observations": "Box of float64", "actions": "Box", "more": (("activation", "gelu"),)},
    "sac": {"actions": "Box", "more": (("gsde", True), ("activation", "silu"), ("layer_norm", True))},
    "async-q": {"observations": "MultiDiscrete"},
    "async-sarsa": {"masks": True},
    "async-nstep-q": {"observations": "MultiBinary", "core": "gru"},
    "acer": {"actions": "Box", "core": "lstm"},
}
MORE = [
    ("qr-dqn", {"observations": "image", "encoder": "cnn_small"}),
    ("c51", {"observations": "MultiDiscrete", "masks": True, "more": (("num_atoms", 21), ("value_min", -5.0))}),
    ("ppo", {"actions": "Dict", "masks": True}),
    ("ppo", {"actions": "Box", "more": (("squash_actions", True), ("state_dependent_std", True))}),
    ("ddpg", {"actions": "Box", "more": (("noise", "parameter"), ("layer_norm", True))}),
]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in ("export_agreement", "results"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("algorithm", "settings"), [*CASES.items(), *MORE])
def test_onnx_and_numpy_give_the_actions_and_the_memory_of_birl(algorithm, settings):
    from export_agreement import Case, agreements, random_policy

    for found in agreements(random_policy(Case(algorithm, **settings)), settings.get("masks", False), observations=64):
        assert found.largest < 1e-5
        assert found.others == 0
        assert found.sampled < 1e-5  # from the noise that the key of Birl gives


def test_actions_scaled_to_wide_bounds_are_exported(monkeypatch):
    import export_agreement

    monkeypatch.setitem(export_agreement.ACTION_SPACES, "Box", spaces.Box(np.float32([0, -1]), np.float32([500, 1])))
    policy = export_agreement.random_policy(export_agreement.Case("ppo", actions="Box"))
    assert policy.act(np.zeros(5, np.float32))[0][0] > 5
    for found in export_agreement.agreements(policy, False, observations=64):
        assert found.largest < 1e-2
        assert found.sampled < 1e-2


def test_the_cases_of_the_benchmark_have_every_algorithm_core_encoder_and_action_space():
    from export_agreement import CORES, ENCODERS, cases

    import birl
    from birl.registry import EVERY_ACTION, supports

    found = list(cases())
    for name in birl.ALGORITHMS:
        rows = [case for case in found if case.algorithm == name]
        assert {case.actions for case in rows} == set(supports(name).actions)
        assert {case.core for case in rows} == (set(CORES) if supports(name).recurrent else {"feedforward"})
    assert {case.actions for case in found} == set(EVERY_ACTION)
    assert {case.encoder for case in found} == {"mlp", *ENCODERS}
