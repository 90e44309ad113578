"""A folder with policy.py, weights.npz and policy.json: a policy that needs NumPy only."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError
from birl.envs.spaces import is_composite, name_of, parts_of
from birl.errors import CheckpointError
from birl.lab.exporting.graph import KIND, Graph, Port
from birl.lab.exporting.nodes import Node, placed, unknown_operation
from birl.operations import Value
from birl.run import files

WIDEST = 72  # columns of an expression that is written into another
ATOM, POWER, UNARY, TIMES, PLUS, AND, XOR, OR, COMPARE = range(9, 0, -1)  # how tightly operators bind
INFIX = {
    "add": ("+", PLUS), "and": ("&", AND), "dot_general": ("@", TIMES), "eq": ("==", COMPARE), "ge": (">=", COMPARE),
    "gt": (">", COMPARE), "le": ("<=", COMPARE), "lt": ("<", COMPARE), "mul": ("*", TIMES), "ne": ("!=", COMPARE),
    "or": ("|", OR), "sub": ("-", PLUS), "xor": ("^", XOR),
}  # fmt: skip
CALLS = {
    "abs": "np.abs", "acos": "np.arccos", "acosh": "np.arccosh", "asin": "np.arcsin", "asinh": "np.arcsinh",
    "atan": "np.arctan", "atanh": "np.arctanh", "ceil": "np.ceil", "cos": "np.cos", "cosh": "np.cosh", "erf": "erf",
    "exp": "np.exp", "expm1": "np.expm1", "floor": "np.floor", "is_finite": "np.isfinite", "log": "np.log",
    "log1p": "np.log1p", "max": "np.maximum", "min": "np.minimum", "rem": "np.fmod", "round": "np.round",
    "sign": "np.sign", "sin": "np.sin", "sinh": "np.sinh", "sqrt": "np.sqrt", "square": "np.square", "tan": "np.tan",
    "tanh": "np.tanh",
}  # fmt: skip
REDUCTIONS = {
    "argmax": "np.argmax", "argmin": "np.argmin", "reduce_and": "np.all", "reduce_max": "np.max",
    "reduce_min": "np.min", "reduce_or": "np.any", "reduce_prod": "np.prod", "reduce_sum": "np.sum",
}  # fmt: skip
CODE, WEIGHTS, DESCRIPTION = "policy.py", "weights.npz", "policy.json"
ERF = """

erf = np.vectorize(math.erf, otypes=[np.float32])
"""
CONVOLVE = '''

def convolve(x, weight, strides, pads, dilations, groups):
    """A convolution of [N, channels, ...] with weights [outputs, inputs, ...]."""
    axes = tuple(range(2, x.ndim))
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    sizes = [(size - 1) * dilation + 1 for size, dilation in zip(weight.shape[2:], dilations)]
    windows = np.lib.stride_tricks.sliding_window_view(x, sizes, axes)
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    windows = windows[(slice(None), slice(None), *steps)]
    summed = (1, *range(x.ndim, windows.ndim))
    parts = zip(np.split(windows, groups, 1), np.split(weight, groups, 0))
    results = [np.tensordot(part, own, (summed, (1, *axes))) for part, own in parts]
    return np.moveaxis(np.concatenate(results, -1), -1, 1)
'''
PROGRAM = '''"""A policy of {algorithm}, written by Birl {birl}. It needs NumPy only.

    python policy.py OBSERVATION    # as JSON; without it, it is read from the standard input

{ports}
"""

import json
{imports}import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
INPUTS = {{port["name"]: port for port in json.loads((HERE / "{description}").read_text())["inputs"]}}
with np.load(HERE / "{weights}", allow_pickle=False) as file:
    w = dict(file)
{functions}

def step(given):
    """The outputs for arrays by the names of the inputs."""
{lines}
    return {{
{outputs}
    }}


def act(observation, memory=None{arguments}):
    """The action, and the memory to pass with the next call.

    {about}
    Pass None as memory when an episode begins.
    """
    parts = {parts}
    if memory is None:
        given = {{**parts, **{{name: 0 for name in INPUTS if name.startswith("memory")}}, "resets": True}}
    else:
        given = {{**parts, **memory, "resets": False}}
{more}    arrays = {{}}
    for name, port in INPUTS.items():
        arrays[name] = np.broadcast_to(np.asarray(given[name], port["dtype"]), port["shape"])
    with np.errstate(all="ignore"):
        results = step(arrays)
    name, array = next(iter(parts.items()))
    single = np.ndim(array) < len(INPUTS[name]["shape"])
    actions = {{name: array[0] if single else array for name, array in results.items()}}
    memory = {{name[len("new_") :]: array for name, array in results.items() if name.startswith("new_")}}
    return {action}, memory


if __name__ == "__main__":
    text = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read()
    print(json.dumps(act(json.loads(text))[0], default=lambda array: array.tolist()))
'''
MASK = """    given["action_mask"] = True if action_mask is None else action_mask
"""


class Text(NamedTuple):
    """An expression."""

    code: str
    binds: int = ATOM

    def within(self, binds: int) -> str:
        return self.code if self.binds >= binds else f"({self.code})"


Make = Callable[[Node, list[Text]], Text]


def quoted(text: str) -> str:
    """A string of Python. Names come from a run's files: nothing in one may end it."""
    return json.dumps(text)


def _infix(operator: str, binds: int) -> Make:
    # the left operand of + may be another sum, that of < no comparison
    left = binds + 1 if binds == COMPARE else binds
    return lambda node, xs: Text(f"{xs[0].within(left)} {operator} {xs[1].within(binds + 1)}", binds)


def _call(function: str) -> Make:
    return lambda node, xs: Text(f"{function}({', '.join(x.code for x in xs)})")


def _reduce(function: str) -> Make:
    def make(node: Node, xs: list[Text]) -> Text:
        axes = tuple(int(axis) for axis in node.params["axes"])
        return Text(f"{function}({xs[0].code}, axis={axes[0] if len(axes) == 1 else axes})")

    return make


def _method(name: str, *arguments: Any) -> Callable[[Text], Text]:
    return lambda x: Text(f"{x.within(ATOM)}.{name}({', '.join(map(str, arguments))})")


def _type(dtype: Any) -> str:
    name = np.dtype(dtype).name
    return "bool" if name == "bool" else f"np.{name}"


def _cast(node: Node, xs: list[Text]) -> Text:
    return _method("astype", _type(node.output.dtype))(xs[0])


def _reshape(node: Node, xs: list[Text]) -> Text:
    return _method("reshape", node.output.shape)(xs[0])


def _divide(node: Node, xs: list[Text]) -> Text:
    quotient = _infix("/", TIMES)(node, xs)
    if np.dtype(node.output.dtype).kind == "f":
        return quotient
    return Text(f"np.trunc({quotient.code}).astype({_type(node.output.dtype)})")


def _select(node: Node, xs: list[Text]) -> Text:
    if len(xs) > 3:
        raise ConfigError(unknown_operation("select_n of many cases"))
    chosen = Text(f"np.where({xs[0].code}, {xs[2].code}, {xs[1].code})")
    # two numbers have no type of their own
    return _cast(node, [chosen]) if all(value.shape == () for value in node.inputs[1:]) else chosen


def _broadcast(node: Node, xs: list[Text]) -> Text:
    x = xs[0] if placed(node) == node.inputs[0].shape else _method("reshape", placed(node))(xs[0])
    return Text(f"np.broadcast_to({x.code}, {node.output.shape})")


def _slice(node: Node, xs: list[Text]) -> Text:
    starts, ends = node.params["start_indices"], node.params["limit_indices"]
    steps = node.params["strides"] or (1,) * len(starts)
    bounds = zip(starts, ends, steps, node.inputs[0].shape, strict=True)
    window = [
        ":" if (low, high, step) == (0, size, 1) else f"{low}:{high}" + (f":{step}" if step != 1 else "")
        for low, high, step, size in bounds
    ]
    while len(window) > 1 and window[-1] == ":":
        window.pop()
    return Text(f"{xs[0].within(ATOM)}[{', '.join(window)}]")


def _pad(node: Node, xs: list[Text]) -> Text:
    low, high, inner = zip(*node.params["padding_config"], strict=True)
    if any(inner) or min(*low, *high) < 0:
        raise ConfigError(unknown_operation("pad with gaps or with negative widths"))
    return Text(f"np.pad({xs[0].code}, {tuple(zip(low, high, strict=True))}, constant_values={xs[1].code})")


def _take(node: Node, xs: list[Text]) -> Text:
    operand, indices = node.inputs
    axis = node.params["axis"]
    if node.name == "take":
        places = _method("reshape", indices.shape[:-1])(xs[1])
        return Text(f'np.take({xs[0].code}, {places.code}, axis={axis}, mode="clip")')
    places = _method("reshape", node.output.shape)(xs[1])
    return Text(f"np.take_along_axis({xs[0].code}, {places.code}.clip(0, {operand.shape[axis] - 1}), axis={axis})")


def _convolve(node: Node, xs: list[Text]) -> Text:
    params = node.params
    pads = [tuple(map(int, pair)) for pair in params["padding"]]
    others = tuple(params["window_strides"]), pads, tuple(params["rhs_dilation"]), params["feature_group_count"]
    return Text(f"convolve({', '.join([x.code for x in xs] + [str(other) for other in others])})")


def _cumulate(node: Node, xs: list[Text]) -> Text:
    axis = node.params["axis"]
    if not node.params["reverse"]:
        return Text(f"np.cumsum({xs[0].code}, axis={axis})")
    return Text(f"np.flip(np.cumsum(np.flip({xs[0].code}, {axis}), axis={axis}), {axis})")


TABLE: dict[str, Make] = (
    {name: _infix(operator, binds) for name, (operator, binds) in INFIX.items()}
    | {name: _call(function) for name, function in CALLS.items()}
    | {name: _reduce(function) for name, function in REDUCTIONS.items()}
    | {
        "broadcast_in_dim": _broadcast,
        "concatenate": lambda node, xs: Text(
            f"np.concatenate([{', '.join(x.code for x in xs)}], axis={node.params['dimension']})"
        ),
        "conv_general_dilated": _convolve,
        "convert_element_type": _cast,
        "cumsum": _cumulate,
        "div": _divide,
        "integer_pow": lambda node, xs: Text(f"{xs[0].within(ATOM)} ** {node.params['y']}", POWER),
        "logistic": lambda node, xs: Text(f"1 / (1 + np.exp(-{xs[0].within(UNARY)}))", TIMES),
        "neg": lambda node, xs: Text(f"-{xs[0].within(UNARY)}", UNARY),
        "not": lambda node, xs: Text(f"~{xs[0].within(UNARY)}", UNARY),
        "pad": _pad,
        "pow": lambda node, xs: Text(f"{xs[0].within(ATOM)} ** {xs[1].within(ATOM)}", POWER),
        "reshape": _reshape,
        "rev": lambda node, xs: Text(f"np.flip({xs[0].code}, {tuple(node.params['dimensions'])})"),
        "rsqrt": lambda node, xs: Text(f"1 / np.sqrt({xs[0].code})", TIMES),
        "select_n": _select,
        "slice": _slice,
        "take": _take,
        "take_along_axis": _take,
        "transpose": lambda node, xs: Text(
            f"np.transpose({xs[0].code}, {tuple(map(int, node.params['permutation']))})"
        ),
    }
)


class Lines:
    """Lines of NumPy, and the arrays that they read as w["name"]."""

    def __init__(self, graph: Graph) -> None:
        self.lines: list[str] = []
        self.weights: dict[str, np.ndarray] = {}
        self.labels = graph.names
        self.texts = {port.value: Text(f"given[{quoted(port.name)}]") for port in graph.inputs}
        uses = Counter(value for node in graph.nodes for value in node.inputs)
        uses.update(port.value for port in graph.outputs)
        self.is_used_once = {value for value, count in uses.items() if count == 1}

    def write(self, node: Node) -> None:
        """Append the line that computes this node, or keep its expression for the next line."""
        if node.name not in TABLE:
            raise ConfigError(unknown_operation(node.name))
        text = TABLE[node.name](node, [self.text_of(value) for value in node.inputs])
        if node.output not in self.is_used_once or len(text.code) > WIDEST:
            self.lines.append(f"x{len(self.lines)} = {text.code}")
            text = Text(f"x{len(self.lines) - 1}")
        self.texts[node.output] = text

    def text_of(self, value: Value) -> Text:
        if value not in self.texts:
            assert value.constant is not None
            self.texts[value] = self._constant(value)
        return self.texts[value]

    def _constant(self, value: Value) -> Text:
        array = np.asarray(value.constant)
        if array.shape == ():
            number = str(array[()])
            number = f"np.{number.lstrip('-')}" if number.lstrip("-") in ("inf", "nan") else number.lstrip("-")
            return Text(f"-{number}", UNARY) if array.dtype.kind in "if" and array < 0 else Text(number)
        name = label = self.labels.get(value, "constant")
        count = 1
        while name in self.weights:
            count += 1
            name = f"{label}.{count}"
        self.weights[name] = array
        return Text(f"w[{quoted(name)}]")


def numpy_lines(graph: Graph) -> tuple[Lines, dict[str, str]]:
    """The lines of a graph, and an expression for each output, by its name."""
    lines = Lines(graph)
    for node in graph.nodes:
        lines.write(node)
    outputs = {
        port.name: f"np.asarray({lines.text_of(port.value).code}, {_type(port.value.dtype)})" for port in graph.outputs
    }
    return lines, outputs


def numpy_files(
    graph: Graph, description: dict[str, Any], spaces_of: tuple[gym.Space, gym.Space]
) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """The texts of the folder's files by their names, and the arrays of weights.npz."""
    lines, outputs = numpy_lines(graph)
    code = "\n".join(lines.lines)
    noises = [port for port in graph.inputs if port.distribution]
    has_mask = any(port.name == "action_mask" for port in graph.inputs)
    program = PROGRAM.format(
        algorithm=description["algorithm"],
        birl=description["birl"],
        ports="\n".join(_lines_about(graph)),
        imports="import math\n" if "erf(" in code else "",
        description=DESCRIPTION,
        weights=WEIGHTS,
        functions=(ERF if "erf(" in code else "") + (CONVOLVE if "convolve(" in code else ""),
        lines="\n".join(f"    {line}" for line in lines.lines),
        outputs="\n".join(f"        {quoted(name)}: {text}," for name, text in outputs.items()),
        arguments=(", action_mask=None" if has_mask else "") + (", rng=None, noise=None" if noises else ""),
        about=f"Observations are [{description['batch_size']}, ...]; one without that axis gives an action without it.",
        parts=_parts(spaces_of[0]),
        more=(MASK if has_mask else "") + (_drawing(noises) if noises else ""),
        action=_action(spaces_of[1], ()),
    )
    text = json.dumps(description | {"kind": KIND}, indent=1) + "\n"
    return {CODE: program.encode(), DESCRIPTION: text.encode()}, lines.weights


def is_exported(path: Path) -> bool:
    """True if this is a folder that `export` wrote, with nothing else in it."""
    try:
        names = {entry.name for entry in path.iterdir()} if path.is_dir() and not path.is_symlink() else set()
        written = files.read_json(path / DESCRIPTION) if DESCRIPTION in names else None
    except (CheckpointError, OSError):
        return False
    return (
        names <= {CODE, WEIGHTS, DESCRIPTION, "__pycache__"}
        and isinstance(written, dict)
        and written.get("kind") == KIND
    )


def _lines_about(graph: Graph) -> list[str]:
    """A line about each input and output, for a docstring that nothing in them can end."""
    return [
        quoted(f"{side} {port.name} {np.dtype(port.value.dtype)}{list(port.value.shape)}: {port.meaning}")[1:-1]
        for side, ports in (("input", graph.inputs), ("output", graph.outputs))
        for port in ports
    ]


def _parts(space: gym.Space) -> str:
    """The expression for the parts of an observation by the names of their inputs."""
    if isinstance(space, spaces.Dict):
        return '{f"observation.{name}": part for name, part in observation.items()}'
    return '{"observation": observation}'


def _drawing(noises: list[Port]) -> str:
    """The lines that draw noise, unless it was given."""
    drawn = [f"            {quoted(port.name)}: {_draw(port)}," for port in noises]
    return "\n".join(
        [
            "    if noise is None:",
            "        rng = np.random.default_rng() if rng is None else rng",
            "        noise = {",
            *drawn,
            "        }",
            "    given |= noise",
            "",
        ]
    )


def _draw(port: Port) -> str:
    shape = port.value.shape
    if port.distribution == "standard normal":
        return f"rng.standard_normal({shape})"
    if port.distribution == "standard Gumbel":
        return f"rng.gumbel(size={shape})"
    low, high = port.distribution.removeprefix("uniform in [").removesuffix(")").split(", ")
    return f"rng.uniform({low}, {high}, {shape})"


def _action(space: gym.Space, path: tuple[Any, ...]) -> str:
    """The expression for an action as `step` of the environment takes it."""
    if not is_composite(space):
        return f"actions[{quoted('.'.join(filter(None, ('action', name_of(path)))))}]"
    parts = {key: _action(part, (*path, key)) for key, part in parts_of(space)}
    if isinstance(space, spaces.Dict):
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in parts.items()) + "}"
    return "(" + "".join(f"{text}, " for text in parts.values()).rstrip() + ")"
