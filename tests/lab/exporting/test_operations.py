"""Each operation gives in ONNX and in NumPy what it gives in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

from birl.config import ConfigError
from birl.lab.exporting.graph import Graph, Port
from birl.lab.exporting.nodes import Inliner, nodes_of
from birl.lab.exporting.numpy_code import CONVOLVE, ERF, numpy_lines
from birl.lab.exporting.onnx_file import onnx_bytes
from birl.maths.value_distributions import CategoricalValues, QuantileValues, ScalarValues, atoms, midpoints
from birl.operations import Value, WaitsFor, needed

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype(np.float32)
Y = RNG.uniform(0.1, 0.9, (3, 4)).astype(np.float32)
I = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)  # noqa: E741


def graph_of(function, arrays):
    closed = jax.make_jaxpr(function)(*arrays)
    values = [Value(WaitsFor.STEP, array.shape, array.dtype) for array in arrays]
    inliner = Inliner({})
    results = inliner.inline(closed, values)
    nodes, results = nodes_of(needed(inliner.operations, results), results, {})
    inputs = [Port(f"input{number}", value, "") for number, value in enumerate(values)]
    outputs = [Port(f"output{number}", value, "") for number, value in enumerate(results)]
    return Graph(inputs, nodes, outputs, {}, Value(WaitsFor.KEY, (2,), np.uint32), [])


def assert_same(function, *arrays):
    graph = graph_of(function, arrays)
    expected = jax.tree.leaves(jax.jit(function)(*arrays))
    given = {port.name: array for port, array in zip(graph.inputs, arrays, strict=True)}
    session = onnxruntime.InferenceSession(onnx_bytes(graph, {}), providers=["CPUExecutionProvider"])
    lines, outputs = numpy_lines(graph)
    known = {"given": given, "w": lines.weights}
    exec("import math\nimport numpy as np\n" + ERF + CONVOLVE + "\n".join(lines.lines), known)
    in_numpy = [eval(text, known) for text in outputs.values()]  # noqa: S307
    for results in (session.run(None, given), in_numpy):
        for result, wanted in zip(results, expected, strict=True):
            assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=2e-6)


def test_functions_of_floats():
    def function(x, y):
        anywhere = [
            jnp.abs(x), jnp.ceil(x), jnp.cos(x), jnp.cosh(x), jnp.exp(x), jnp.expm1(x), jnp.floor(x), -x, jnp.sign(x),
            jnp.sin(x), jnp.sinh(x), jnp.tan(x), jnp.tanh(x), jnp.arctan(x), jnp.arcsinh(x), jax.nn.sigmoid(x),
            jnp.square(x), x**3, jax.lax.erf(x), jax.lax.erfc(x), jnp.exp2(x), jnp.round(x * 3), jnp.isfinite(x),
        ]  # fmt: skip
        positive = [jnp.log(y), jnp.log1p(y), jnp.sqrt(y), jax.lax.rsqrt(y), y**x, jnp.arccos(y), jnp.arcsin(y)]
        positive += [jnp.arctanh(y), jnp.arccosh(1 + y), jax.lax.integer_pow(y, -1)]
        both = [x + y, x - y, x * y, x / y, jnp.maximum(x, y), jnp.minimum(x, y), jax.lax.rem(x, y)]
        return anywhere + positive + both + [jax.nn.gelu(x), jax.nn.elu(x), jax.nn.softplus(x), jnp.clip(x, -1, 1)]

    assert_same(function, X, Y)


def test_expressions_keep_their_order():
    assert_same(lambda x, y: (x - (y - x), (x + y) * (x - y) / (y * y), -((x + y) ** 2), x / (y / (x + 4))), X, Y)


def test_comparisons_logic_and_choices():
    def function(x, y, i):
        yes, no = x > y, i >= 0
        logic = [yes & no, yes | no, yes ^ no, ~yes, x < 0, x <= y, i == 2, i != 2, yes == no]
        return [*logic, jnp.where(yes, x, y), jnp.where(yes, no, yes), jnp.where(no, i, 7), jnp.where(yes, 1.0, 0.0)]

    assert_same(function, X, Y, I)


def test_integers_and_types():
    def function(i):
        small = i.astype(jnp.int8)
        floats = i.astype(jnp.float32) / 4
        sums = [i + 1, i * i, i - 3, -i, jnp.abs(i), jax.lax.div(i, 4), jax.lax.rem(i, 4), i.sum(0), i.max(1)]
        types = [small + small, small > 0, jnp.maximum(small, 0), floats, floats.astype(jnp.int32), i.astype(bool)]
        return sums + types

    assert_same(function, I)


def test_reductions():
    def function(x, i):
        yes = x > 0
        found = [
            x.sum(0),
            x.sum(),
            x.max(1),
            x.min((0, 1)),
            x.prod(1),
            yes.all(0),
            yes.any(1),
            x.mean(1, keepdims=True),
        ]
        return [*found, x.argmax(1), i.argmin(0), yes.argmax(1), jnp.cumsum(x, 1), jax.lax.cumsum(x, 0, reverse=True)]

    assert_same(function, X, I)


def test_values_of_quantiles_and_probabilities():
    def function(x, y):
        support = atoms(-1.0, 2.0, 4)
        kinds = ScalarValues(x), QuantileValues(x[None], midpoints(4)), CategoricalValues(y[:, None], support)
        return [kind.mean() for kind in kinds]

    assert_same(function, X, Y)


def test_shapes():
    def function(x, y):
        moved = [x.T, x.reshape(2, 6), x[None, :, None], x[1:, ::2], x[::-1], x[:, -1], jnp.pad(x, ((1, 0), (0, 2)))]
        joined = [jnp.concatenate([x, y], 1), jnp.stack([x, y], 1), *jnp.split(x, 2, axis=1), jnp.tile(x[:1], (2, 1))]
        return [*moved, *joined, jnp.broadcast_to(x[:, :1], (3, 4)), x + y[:1], jnp.roll(x, 1, axis=1)]

    assert_same(function, X, Y)


def test_rows_and_elements_by_index():
    def function(x, i):
        places = jnp.clip(i[:, 0] + 6, 0, 2)
        return (
            x[places],
            jnp.take(x, places, axis=1),
            jnp.take_along_axis(x, places[:, None], axis=1),
            x[:, np.array([2, 0])],
        )

    assert_same(function, X, I)


def test_products_of_any_axes():
    stack = RNG.normal(size=(3, 2, 4)).astype(np.float32)
    assert_same(lambda x, y: (x @ y.T, jnp.einsum("ab,ab->a", x, y), jnp.einsum("ab,cb->ca", x, y), x @ x[0]), X, Y)
    assert_same(lambda x, y: (y @ x.T, jnp.einsum("abc,ac->ab", y, x), y @ y.swapaxes(1, 2)), X, stack)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_convolutions_with_strides_padding_dilation_and_groups(layout):
    image = RNG.normal(size=(2, 9, 8, 4)).astype(np.float32)
    weight = RNG.normal(size=(3, 2, 2, 6)).astype(np.float32)
    image, kernel = (image, "HWIO") if layout == "NHWC" else (image.transpose(0, 3, 1, 2), "HWIO")

    def function(x):
        return jax.lax.conv_general_dilated(
            x, weight, (2, 1), ((1, 2), (0, 1)), rhs_dilation=(1, 2),
            dimension_numbers=(layout, kernel, layout), feature_group_count=2,
        )  # fmt: skip

    assert_same(function, image)


def test_loops_and_branches_are_written_out():
    def function(x, i):
        total, rows = jax.lax.scan(lambda carry, row: (carry * 0.5 + row, carry.sum()), jnp.zeros(4), x, reverse=True)
        chosen = jax.lax.cond(i[0, 0] > 0, lambda: x[0], lambda: x[1])
        return total, rows, chosen, jax.checkpoint(jnp.tanh)(x), jax.lax.fori_loop(0, 3, lambda _, y: y * 2 + 1, x)

    assert_same(function, X, I)


@pytest.mark.parametrize("write", [lambda graph: onnx_bytes(graph, {}), numpy_lines])
def test_an_operation_without_a_form_is_named_in_one_sentence(write):
    graph = graph_of(lambda x: jnp.sort(x), [X])
    with pytest.raises(ConfigError, match="the operation 'sort' of JAX, which export has no form of"):
        write(graph)


def test_a_long_loop_is_refused_with_its_length():
    with pytest.raises(ConfigError, match="a loop of 1000 steps; export writes out at most 64"):
        graph_of(lambda x: jax.lax.scan(lambda carry, _: (carry + 1, None), x, None, length=1000)[0], [X])
