"""A folder with policy.py, weights.npz and policy.json: a policy that needs NumPy only."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.envs.spaces import is_composite, name_of, parts_of
from birl.errors import CheckpointError
from birl.lab.exporting.description import KEY
from birl.lab.exporting.graph import Graph, Port
from birl.lab.exporting.numpy_code import numpy_lines, quoted
from birl.run import files

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
    text = json.dumps(description | {"kind": KEY}, indent=1) + "\n"
    return {CODE: program.encode(), DESCRIPTION: text.encode()}, lines.weights


MASK = """    given["action_mask"] = True if action_mask is None else action_mask
"""


def is_exported(path: Path) -> bool:
    """Whether this is a folder that `export` wrote, with nothing else in it."""
    try:
        names = {entry.name for entry in path.iterdir()} if path.is_dir() and not path.is_symlink() else set()
        written = files.read_json(path / DESCRIPTION) if DESCRIPTION in names else None
    except (CheckpointError, OSError):
        return False
    return (
        names <= {CODE, WEIGHTS, DESCRIPTION, "__pycache__"}
        and isinstance(written, dict)
        and written.get("kind") == KEY
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
