"""The NumPy form of acting against JAX: the same numbers, or it is not used."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from birl.accel.numpy_acting import take_apart
from birl.maths.keys import step_keys
from birl.types import Action

ENVS, LENGTH = 3, 2
KEY = np.array([3, 5], np.uint32)
RESETS = np.array([True, False, True])
WEIGHT = np.random.default_rng(0).standard_normal((4, 4), np.float32)
INPUTS = {
    "f": np.array([[-2.5, 0.0, 0.25, 7.0], [3.0, -0.5, 1.5, -1.0], [0.125, 20.0, -30.0, 1.0]], np.float32),
    "i": np.array([[-7, 2, 0, 5], [7, -3, 2**31 - 1, 1], [-(2**31), 4, -1, 3]], np.int32),
    "u": np.array([[0, 255, 7, 3], [200, 100, 1, 2], [9, 8, 254, 16]], np.uint8),
    "b": np.array([[True, False, True, True], [False] * 4, [True] * 4]),
}


def act_of(function):
    """An act whose behaviour is what the function makes of the policy and the inputs."""

    def act(policy, observations, memory, resets, masks, key):
        return Action(jnp.zeros(resets.shape, jnp.int32), memory, function(policy, observations, resets))

    return act


def compare(function, policy=WEIGHT, observations=INPUTS):
    """Whether it is taken apart; if it is, it gives what JAX gives."""
    act = act_of(function)
    inputs = (observations, (), RESETS, None)
    start = take_apart(act, policy, inputs, KEY, LENGTH)
    if start is None:
        return False
    found = start(policy, KEY)(1, *inputs)
    expected = jax.jit(act)(policy, *inputs, np.asarray(step_keys(jnp.asarray(KEY), LENGTH))[1])
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        if theirs.dtype.kind == "f":
            scale = np.abs(np.nan_to_num(theirs, posinf=0, neginf=0)).max(initial=1.0)
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4 * scale)
        else:
            np.testing.assert_array_equal(mine, theirs)
    return True


DIFFERENT = {
    "a quotient of integers": lambda policy, o, resets: jax.lax.div(o["i"], jnp.int32(2)),
    "three cases": lambda policy, o, resets: jax.lax.select_n(jnp.where(o["b"], 2, 1), o["f"], o["f"] + 1, o["f"] + 2),
    "one case": lambda policy, o, resets: jax.lax.select_n(o["b"], o["f"]),
    "two cases by an integer": lambda policy, o, resets: jax.lax.select_n(jnp.where(o["b"], 1, 0), o["f"], -o["f"]),
    "a product of integers": lambda policy, o, resets: jax.lax.dot(o["u"], o["u"].T, preferred_element_type=jnp.int32),
    "a product of bytes": lambda policy, o, resets: o["u"] @ jnp.ones((4, 2), jnp.uint8),
    "a float beyond an integer's range": lambda policy, o, resets: (1e9 * o["f"]).astype(jnp.int32),
    "a float as a byte": lambda policy, o, resets: o["f"].astype(jnp.uint8),
    "all bits": lambda policy, o, resets: jax.lax.reduce_and(o["i"], (1,)),
    "half floats": lambda policy, o, resets: (o["f"].astype(jnp.float16) * 3).astype(jnp.float32),
    "bfloat16": lambda policy, o, resets: (o["f"].astype(jnp.bfloat16) + 1).astype(jnp.float32),
    "a reshape with a transposition": lambda policy, o, resets: jax.lax.reshape(o["f"], (4, 3), (1, 0)),
    "the largest of none": lambda policy, o, resets: jnp.max(o["f"][:, :0], axis=1, initial=-1.0),
    "something printed": lambda policy, o, resets: (jax.debug.print("{}", o["f"][0, 0]), o["f"])[1],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_numpy_does_otherwise_is_left_to_jax(name):
    assert not compare(DIFFERENT[name])


@pytest.mark.parametrize(
    "numbers", [np.full((ENVS, 2), 1 / 3), np.full((ENVS, 2), 2**40 + 7)], ids=["floats", "integers"]
)
@pytest.mark.parametrize("name", ["x", ""])
def test_observations_of_64_bits_are_brought_down_to_32_as_by_jax(numbers, name):
    observations = {name: numbers} if name else numbers
    assert compare(lambda policy, o, resets: 3 * (o[name] if name else o) + 1, observations=observations)


def test_a_policys_64_bits_are_brought_down_to_32_as_by_jax():
    assert compare(lambda policy, o, resets: o["f"] @ policy, policy=WEIGHT.astype(np.float64))


SAME = {
    "a number that was an array of several axes": lambda policy, o, resets: (
        (o["f"][:1, None] @ policy[:, :1]).reshape(()) * o["f"]
    ),
    "the logarithm of a logistic function": lambda policy, o, resets: jnp.log(jax.nn.sigmoid(o["f"])),
    "sums of integers that overflow": lambda policy, o, resets: o["i"] + o["i"] * o["i"] - jnp.sum(o["i"]),
    "bytes that overflow": lambda policy, o, resets: (o["u"] + o["u"], o["u"] * o["u"], ~o["u"], -o["u"]),
    "the first of several largest": lambda policy, o, resets: (jnp.argmax(o["b"], 1), jnp.argmax(0 * o["f"], 0)),
    "what is not a number": lambda policy, o, resets: (jnp.max(jnp.log(o["f"]), 1), jnp.argmax(jnp.log(o["f"]), 1)),
    "rows that begin": lambda policy, o, resets: jnp.where(resets[:, None, None], policy, o["f"][:, :, None]),
}


@pytest.mark.parametrize("name", SAME)
def test_what_numpy_does_as_jax_is_done_by_numpy(name):
    assert compare(SAME[name])


# Random programs. Rounded values are not made discrete: there the last bit would decide.


# name: the kinds of arrays it takes, whether only exact ones, whether it gives exact ones, function
ONE = {
    "abs": ("if", False, True, jnp.abs),
    "neg": ("if", False, True, jnp.negative),
    "not": ("biu", True, True, jnp.invert),
    "square": ("if", False, False, jnp.square),
    "cube": ("f", False, False, lambda x: jnp.clip(x, -9, 9) ** 3),
    "tanh": ("f", False, False, jnp.tanh),
    "sigmoid": ("f", False, False, jax.nn.sigmoid),
    "relu": ("if", False, True, jax.nn.relu),
    "exp": ("f", False, False, lambda x: jnp.exp(jnp.clip(x, -9, 9))),
    "log": ("f", False, False, lambda x: jnp.log(jnp.abs(x) + 0.5)),
    "root": ("f", False, False, lambda x: jax.lax.rsqrt(jnp.abs(x) + 0.5)),
    "softmax": ("f", False, False, lambda x: jax.nn.softmax(jnp.clip(x, -20, 20))),
    "sign": ("if", True, True, jnp.sign),
    "is positive": ("if", True, True, lambda x: x > 0),
    "as float": ("biu", True, True, lambda x: x.astype(jnp.float32)),
    "as integer": ("bf", True, True, lambda x: (x * 2**30).astype(jnp.int32)),  # by JAX
    "halved": ("iu", True, True, lambda x: jax.lax.div(x, jnp.asarray(2, x.dtype))),  # by JAX
    "rows": ("biuf", False, True, lambda x: x[1:, None]),
    "every second": ("biuf", False, True, lambda x: x[::2]),  # by JAX
    "turned": ("biuf", False, True, lambda x: jnp.moveaxis(x, 0, -1)),
    "flat": ("biuf", False, True, lambda x: x.reshape(1, -1)),
    "sum": ("if", False, False, lambda x: jnp.sum(x, -1)),
    "largest": ("if", False, True, lambda x: jnp.max(x, 0, keepdims=True)),
    "any": ("b", True, True, lambda x: jnp.any(x, -1)),
    "best": ("biuf", True, True, lambda x: jnp.argmax(x, -1)),
    "spread": ("biuf", False, True, lambda x: jnp.broadcast_to(x[..., None], (*x.shape, 2))),
    "layer": ("f", False, False, lambda x: jnp.clip(x.reshape(-1)[:4], -9, 9) @ WEIGHT),
}
TWO = {
    "sum": ("if", False, False, jnp.add),
    "difference": ("if", False, False, jnp.subtract),
    "product": ("if", False, False, lambda x, y: jnp.clip(x, -9, 9) * jnp.clip(y, -9, 9)),
    "quotient": ("f", False, False, lambda x, y: x / (jnp.abs(y) + 1)),
    "larger": ("if", False, True, jnp.maximum),
    "equal": ("biuf", True, True, lambda x, y: x == y),
    "both": ("b", True, True, jnp.logical_and),
    "chosen": ("biuf", False, True, lambda x, y: jnp.where(RESETS[0], x, y)),
    "side by side": ("biuf", False, True, lambda x, y: jnp.stack([x, y], -1)),
}


@st.composite
def programs(draw):
    """For each step an operation and its earlier values; a step that does not fit is skipped."""
    names = st.sampled_from([(ONE, name) for name in ONE] + [(TWO, name) for name in TWO])
    return [(*draw(names), draw(st.integers(0, 20)), draw(st.integers(0, 20))) for _ in range(draw(st.integers(1, 8)))]


def run_program(program, policy, observations, resets):
    values = [(observations[kind], True) for kind in "fiub"] + [(resets, True), (observations["f"] @ policy, False)]
    for table, name, first, second in program:
        kinds, needs_exact, gives_exact, function = table[name]
        fitting = [
            value
            for value in values
            if fits(*value, kinds, needs_exact, at_least=2 if name in ("rows", "layer") else 1)
        ]
        if not fitting:
            continue
        chosen = [fitting[first % len(fitting)]]
        if table is TWO:
            alike = [
                value
                for value in fitting
                if (value[0].shape, value[0].dtype) == (chosen[0][0].shape, chosen[0][0].dtype)
            ]
            chosen.append(alike[second % len(alike)])
        result = function(*[x for x, _ in chosen])
        is_exact = np.dtype(chosen[0][0].dtype).kind in "biu" or (gives_exact and all(exact for _, exact in chosen))
        values.append((result, is_exact))
    return [x for x, _ in values]


def fits(x, exact, kinds, needs_exact, at_least):
    return np.dtype(x.dtype).kind in kinds and x.ndim > 0 and len(x) >= at_least and (exact or not needs_exact)


def test_random_programs_are_the_same_in_both_or_left_to_jax():
    taken_apart = []

    @settings(max_examples=20)
    @given(programs())
    def check(program):
        taken_apart.append(compare(partial(run_program, program)))

    check()
    assert 5 < sum(taken_apart) < len(taken_apart)
