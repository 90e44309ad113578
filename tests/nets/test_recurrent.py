"""Cores against the formulas of their papers in NumPy, and unrolled against step by step."""

from functools import partial

import jax
import numpy as np
import pytest

from birl.nets.recurrent import make_core

T, B, F, H = 6, 3, 4, 5
RNG = np.random.default_rng(0)
FEATURES = RNG.standard_normal((T, B, F)).astype(np.float32)
NEVER = np.zeros((T, B), bool)
RECURRENT = ["lstm", "lnlstm", "gru"]

recurrent = pytest.mark.parametrize("name", RECURRENT)
# Little optimisation, to save compile time.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
call = jit(lambda core, features, memory, resets: core(features, memory, resets))


def core_named(name):
    """A core with random biases, scales and shifts, so that none can be ignored unnoticed."""
    core = make_core(np.random.default_rng(1), name, F, H)
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda leaf: np.asarray(leaf) + 0.3 * rng.standard_normal(leaf.shape).astype(np.float32), core)


def random_memory(core):
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(np.float32), core.initial_memory(B))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normed(layer, x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * layer.scale + layer.shift


def lstm_step(core, x, hidden, cell):
    """Gers et al. 2000, gates in the order input, forget, output, candidate."""
    i, f, o, g = np.split(x @ core.inputs + hidden @ core.recurrent + core.bias, 4, axis=-1)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def lnlstm_step(core, x, hidden, cell):
    """Ba et al. 2016, equations 20 to 22."""
    gates = normed(core.norm_recurrent, hidden @ core.recurrent) + normed(core.norm_inputs, x @ core.inputs) + core.bias
    i, f, o, g = np.split(gates, 4, axis=-1)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(normed(core.norm_cell, cell)), cell


def gru_step(core, x, hidden):
    """Cho et al. 2014 in cuDNN's form: n = tanh(W x + b + r (U h + c)), h' = z h + (1 - z) n."""
    r_in, z_in, n_in = np.split(x @ core.inputs + core.bias, 3, axis=-1)
    r_rec, z_rec, n_rec = np.split(hidden @ core.recurrent, 3, axis=-1)
    r, z = sigmoid(r_in + r_rec), sigmoid(z_in + z_rec)
    return z * hidden + (1 - z) * np.tanh(n_in + r * (n_rec + core.candidate_bias))


@pytest.mark.parametrize(("name", "step"), [("lstm", lstm_step), ("lnlstm", lnlstm_step)])
def test_lstms_follow_their_papers_equations(name, step):
    core = core_named(name)
    hidden, cell = random_memory(core)
    outputs, memory = call(core, FEATURES, (hidden, cell), NEVER)
    for t in range(T):
        hidden, cell = step(core, FEATURES[t], hidden, cell)
        np.testing.assert_allclose(outputs[t], hidden, atol=1e-5)
    np.testing.assert_allclose(memory[0], hidden, atol=1e-5)
    np.testing.assert_allclose(memory[1], cell, atol=1e-5)


def test_gru_follows_its_papers_equations():
    core = core_named("gru")
    hidden = random_memory(core)
    outputs, memory = call(core, FEATURES, hidden, NEVER)
    for t in range(T):
        hidden = gru_step(core, FEATURES[t], hidden)
        np.testing.assert_allclose(outputs[t], hidden, atol=1e-5)
    np.testing.assert_allclose(memory, hidden, atol=1e-5)


@recurrent
def test_unrolled_over_time_equals_step_by_step_with_resets(name):
    core = core_named(name)
    resets = RNG.random((T, B)) < 0.3
    assert resets.any()
    unrolled, last = call(core, FEATURES, random_memory(core), resets)
    memory = random_memory(core)
    steps = []
    for t in range(T):
        output, memory = call(core, FEATURES[t : t + 1], memory, resets[t : t + 1])
        steps.append(output[0])
    np.testing.assert_allclose(unrolled, np.stack(steps), atol=1e-6)
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, atol=1e-6), last, memory)


@recurrent
def test_a_reset_equals_starting_from_the_initial_memory(name):
    core = core_named(name)
    cut = 4
    resets = NEVER.copy()
    resets[cut, 1] = True
    outputs, _ = call(core, FEATURES, random_memory(core), resets)
    anew, _ = call(core, np.roll(FEATURES, -cut, axis=0), core.initial_memory(B), NEVER)
    uncut, _ = call(core, FEATURES, random_memory(core), NEVER)
    np.testing.assert_allclose(outputs[cut:, 1], anew[: T - cut, 1], atol=1e-6)
    np.testing.assert_allclose(outputs[:, [0, 2]], uncut[:, [0, 2]], atol=1e-6)  # the other environments are not reset
    assert np.abs(outputs[cut, 1] - uncut[cut, 1]).max() > 1e-3


@recurrent
def test_no_gradient_flows_back_through_a_reset(name):
    core = core_named(name)
    resets = NEVER.copy()
    resets[3] = True

    def last_output(memory):
        return core(FEATURES, memory, resets)[0][-1].sum()

    gradients = jit(jax.grad(last_output))(random_memory(core))
    assert not any(np.any(gradient) for gradient in jax.tree.leaves(gradients))


@recurrent
def test_the_memory_of_one_environment_does_not_affect_another(name):
    core = core_named(name)
    memory = random_memory(core)
    changed = jax.tree.map(lambda leaf: np.concatenate([leaf[:1] + 1, leaf[1:]]), memory)
    before, after = (call(core, FEATURES, m, NEVER)[0] for m in (memory, changed))
    np.testing.assert_array_equal(before[:, 1:], after[:, 1:])
    assert np.all(before[0, 0] != after[0, 0])


def test_feed_forward_returns_features_unchanged_and_has_no_memory():
    core = make_core(np.random.default_rng(0), "feedforward", F, H)
    assert (core.size, core.initial_memory(B)) == (F, ())
    outputs, memory = core(FEATURES, (), ~NEVER)
    np.testing.assert_array_equal(outputs, FEATURES)
    assert memory == ()


def test_layer_norm_lstm_is_finite_and_independent_of_the_scale_of_its_inputs():
    core = make_core(np.random.default_rng(0), "lnlstm", F, H)
    small, huge = (np.asarray(call(core, scale * FEATURES, core.initial_memory(B), NEVER)[0]) for scale in (1e2, 1e6))
    assert np.isfinite(huge).all()
    np.testing.assert_allclose(small, huge, atol=1e-4)


def test_layer_norm_lstm_normalises_its_cell_in_the_output():
    core = make_core(np.random.default_rng(0), "lnlstm", F, H)
    hidden, cell = random_memory(core)
    outputs, _ = call(core, 0 * FEATURES, (0 * hidden, 1000 * cell), NEVER)
    normalised = (cell - cell.mean(-1, keepdims=True)) / cell.std(-1, keepdims=True)
    # Without input and bias, the output gate is 0.5.
    np.testing.assert_allclose(outputs[0], 0.5 * np.tanh(normalised), atol=1e-3)


@recurrent
def test_initial_recurrent_weights_are_orthogonal_for_each_gate_and_forget_gates_open(name):
    core = make_core(np.random.default_rng(0), name, F, H)
    for gate in np.split(np.asarray(core.recurrent, np.float64), core.recurrent.shape[1] // H, axis=1):
        np.testing.assert_allclose(gate.T @ gate, np.eye(H), atol=1e-5)
    np.testing.assert_allclose(core.inputs @ core.inputs.T, np.eye(F), atol=1e-5)
    expected = np.zeros(core.bias.shape)
    if name != "gru":
        expected[H : 2 * H] = 1.0
    np.testing.assert_array_equal(core.bias, expected)
