"""Do exported policies act like Birl's? ONNX in onnxruntime and NumPy, on 1,000 observations each.

Rows that are in RESULTS.md already are not measured again, except with --again. The networks are
untrained, with random parameters and random observation statistics. Of recurrent policies the new
memory is compared too. In some of the steps episodes begin. Run it with

    python benchmarks/export_agreement.py
"""

import argparse
import runpy
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np
import onnxruntime
from gymnasium import spaces
from results import RESULTS, machine, read_section, table, today, write_section

import birl
from birl.envs.spaces import mask_width
from birl.lab.exporting.graph import Graph, describe, graph_of
from birl.lab.exporting.numpy_code import CODE, WEIGHTS, numpy_files
from birl.lab.exporting.onnx_file import onnx_bytes
from birl.registry import algorithm_named, supports
from birl.run.policy import Policy, make_policy
from birl.settings import places_of

OBSERVATIONS, BATCH = 1000, 8
SECTION = "export"
HEADER = ["algorithm", "core", "observation, encoder", "actions", "settings", "ONNX: largest difference"]
HEADER += ["choices that differ", "sampled", "NumPy: largest difference", "choices that differ", "sampled"]
Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
OBSERVATION_SPACES = {
    "Box": spaces.Box(-np.inf, np.inf, (5,), np.float32),
    "Box of float64": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    "Discrete": spaces.Discrete(6),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
    "MultiBinary": spaces.MultiBinary(5),
    "image": spaces.Box(0, 255, (44, 44, 3), np.uint8),
    "image, channels first": spaces.Box(0, 255, (3, 44, 44), np.uint8),
    "image of numbers": spaces.Box(-1, 1, (44, 44, 2), np.float32),
    "Dict": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (44, 44, 1), np.uint8),
            "speed": spaces.Box(-5, 5, (3,), np.float32),
            "gear": spaces.Discrete(4),
        }
    ),
}
ACTION_SPACES: dict[str, gym.Space] = {
    "Discrete": spaces.Discrete(4, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([2, 5], start=[1, 0]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(np.float32([-1, 0]), np.float32([1, 0.5])),
    "Dict": spaces.Dict(
        {
            "steer": spaces.Box(-1, 1, (2,), np.float64),
            "gear": spaces.Discrete(3, start=1),
            "lamps": spaces.MultiBinary(2),
        }
    ),
    "Tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-2, 2, (1,), np.float32))),
}
CORES = ("feedforward", "lstm", "lnlstm", "gru")
ENCODERS = ("cnn", "cnn_2013", "cnn_small", "conv_only")


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    algorithm: str
    observations: str = "Box"
    actions: str = "Discrete"
    core: str = "feedforward"
    encoder: str = "mlp"
    masks: bool = False
    more: tuple[tuple[str, Any], ...] = ()  # other settings


class Agreement(NamedTuple):
    """How far an exported policy is from Birl's."""

    largest: float  # difference of numbers: continuous actions and memory
    others: int  # choices that differ
    sampled: float  # the largest difference of sampled actions, from the noise of the same key


def cases() -> Iterator[Case]:
    """Every algorithm with every core, encoder and action space that it has."""
    for name in birl.ALGORITHMS:
        declared = supports(name)
        first = declared.actions[0]
        has_encoder = "encoder" in places_of(algorithm_named(name).Config)
        yield from (Case(name, actions=first, core=core) for core in CORES if declared.recurrent or core == CORES[0])
        for actions in declared.actions:
            masks = declared.masks and mask_width(ACTION_SPACES[actions]) is not None
            if actions != first or masks:
                yield Case(name, actions=actions, masks=masks)
        if has_encoder:
            yield from (Case(name, "image", first, encoder=encoder) for encoder in ENCODERS)
    for observations in OBSERVATION_SPACES:
        if observations not in ("Box", "image"):
            is_image = "image" in observations or observations == "Dict"
            yield Case("ppo", observations, "Box", encoder="cnn_small" if is_image else "mlp")
    for activation in ("relu", "elu", "silu", "gelu"):
        yield Case("ppo", more=(("activation", activation),))
    yield Case("ppo", actions="Box", more=(("squash_actions", True),))
    yield Case("ppo", actions="Box", more=(("state_dependent_std", True),))
    yield Case("ppo", actions="Box", more=(("gsde", True),))
    yield Case("sac", actions="Box", more=(("gsde", True),))
    yield Case("dqn", more=(("dueling", True),))
    yield Case("ddpg", actions="Box", more=(("noise", "gaussian"),))
    yield Case("ddpg", actions="Box", more=(("noise", "parameter"), ("layer_norm", True)))
    yield from (Case("dpg", actions="Box", more=(("features", features),)) for features in ("linear", "quadratic"))


def random_policy(case: Case, seed: int = 0) -> Policy:
    """The policy of an untrained network, with random parameters and statistics."""
    algorithm, rng = algorithm_named(case.algorithm), np.random.default_rng(seed)
    config = algorithm.Config()
    known = places_of(type(config))
    numbers = "Box" in case.observations or case.observations in ("Dict", "image of numbers")
    settings = {"core": case.core, "encoder": case.encoder, "normalize_observations": numbers} | dict(case.more)
    config = replace(config, **{name: value for name, value in settings.items() if name in known})
    observations, actions = OBSERVATION_SPACES[case.observations], ACTION_SPACES[case.actions]
    policy = make_policy(config, algorithm.init(config, observations, actions), observations, actions)
    names = iter(policy.parameters())
    policy.set_parameters(jax.tree.map(lambda leaf: _random(rng, next(names), np.asarray(leaf)), policy.tree()))
    return policy


def _random(rng: np.random.Generator, name: str, leaf: np.ndarray) -> np.ndarray:
    if name == "in_warmup":
        return np.zeros_like(leaf)
    if leaf.ndim == 0 or leaf.dtype.kind != "f":
        return leaf
    if name.endswith("variance"):
        return rng.uniform(0.5, 2, leaf.shape).astype(leaf.dtype)
    return (leaf + rng.normal(0, 0.1, leaf.shape)).astype(leaf.dtype)


def agreements(policy: Policy, masks: bool, observations: int = OBSERVATIONS) -> list[Agreement]:
    """Compare the exported policy with Birl's own, in BATCH episodes: in ONNX, and in NumPy."""
    found = []
    for sample in (False, True):
        graph = graph_of(policy, BATCH, sample, masks)
        steps = 4 if sample else max(observations // BATCH, 1)
        draw = jax.jit(graph.draw) if sample else None
        found.append(_compared(policy, runners(policy, graph), masks, steps, draw))
    return [Agreement(*likely, max(drawn[0], float(drawn[1]))) for likely, drawn in zip(*found, strict=True)]


def runners(policy: Policy, graph: Graph) -> list[Run]:
    """Functions from inputs by name to outputs by name: in ONNX, and in NumPy."""
    description = describe(policy, graph, BATCH, False)
    session = onnxruntime.InferenceSession(onnx_bytes(graph, description), providers=["CPUExecutionProvider"])
    known = {port.name for port in session.get_inputs()}
    names = [port.name for port in session.get_outputs()]

    def run_onnx(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, {k: v for k, v in given.items() if k in known}), strict=True))

    texts, weights = numpy_files(graph, description, (policy.observation_space, policy.action_space))
    with tempfile.TemporaryDirectory() as folder:
        for name, content in texts.items():
            Path(folder, name).write_bytes(content)
        np.savez(Path(folder, WEIGHTS), **weights)
        module = runpy.run_path(str(Path(folder, CODE)))
    return [run_onnx, np.errstate(all="ignore")(module["step"])]


def _compared(policy: Policy, runs: list[Run], masks: bool, steps: int, draw: Any) -> list[tuple[float, int]]:
    """The largest difference of numbers, and the choices that differ, of each run."""
    rng = np.random.default_rng(1)
    memory = policy.initial_memory(BATCH)
    names = [".".join(["memory", *path]) for path in _paths(memory)]
    found = [(0.0, 0)] * len(runs)
    for step in range(steps):
        observations = _observations(policy.observation_space, rng)
        resets = rng.random(BATCH) < (1 if step == 0 else 0.1)
        mask = _mask(policy.action_space, rng) if masks else None
        key = None if draw is None else np.array([0, step], np.uint32)
        given = flat(observations, "observation") | {"resets": resets}
        given |= {name: np.asarray(leaf) for name, leaf in zip(names, jax.tree.leaves(memory), strict=True)}
        given |= {} if mask is None else {"action_mask": mask}
        given |= {} if draw is None else {name: np.asarray(noise) for name, noise in draw(key).items()}
        actions, memory = policy.act_batch(observations, memory, resets, mask, key)
        expected = flat(policy._env_actions(actions, is_batch=True), "action")
        after = {f"new_{n}": np.asarray(leaf) for n, leaf in zip(names, jax.tree.leaves(memory), strict=True)}
        for number, run in enumerate(runs):
            largest, others = differences(expected, after, run(given))
            found[number] = max(found[number][0], largest), found[number][1] + others
    return found


def differences(
    expected: dict[str, np.ndarray], memory: dict[str, np.ndarray], results: dict[str, np.ndarray]
) -> tuple[float, int]:
    """The largest difference of numbers, and the number of choices that differ."""
    expected = expected | {name: array for name, array in memory.items() if name in results}
    assert expected.keys() == results.keys(), (expected.keys(), results.keys())
    largest, others = 0.0, 0
    for name, array in expected.items():
        assert (array.shape, array.dtype) == (results[name].shape, results[name].dtype), name
        if array.dtype.kind == "f":
            largest = max(largest, float(np.abs(array - results[name]).max()))
        else:
            others += int((array != results[name]).sum())
    return largest, others


def _paths(memory: Any) -> list[list[str]]:
    return [
        [jax.tree_util.keystr((key,), simple=True) for key in path]
        for path, _ in jax.tree_util.tree_flatten_with_path(memory)[0]
    ]


def flat(tree: Any, name: str) -> dict[str, np.ndarray]:
    """The arrays of an observation or action by the names of their inputs or outputs."""
    if isinstance(tree, dict | tuple):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        separator = "/" if "." in name else "."
        return {n: a for key, part in parts for n, a in flat(part, f"{name}{separator}{key}").items()}
    return {name: np.asarray(tree)}


def _observations(space: gym.Space, rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _observations(part, rng) for name, part in space.items()}
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return rng.normal(0, 2, (BATCH, *space.shape)).astype(space.dtype)
    space.seed(int(rng.integers(2**31)))
    return np.stack([space.sample() for _ in range(BATCH)])


def _mask(space: gym.Space, rng: np.random.Generator) -> np.ndarray:
    mask = rng.random((BATCH, mask_width(space) or 0)) < 0.7
    mask[:, 0] = True
    return mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="rows that have this text")
    parser.add_argument("--again", action="store_true", help="measure rows that are in the table, too")
    options = parser.parse_args()
    measured = {} if options.again else rows_of(read_section(options.out, SECTION))
    rows = {tuple(cells_of(case)): case for case in cases()}
    for cells in in_turn(list(rows)):
        case = rows[cells]
        if cells in measured or options.only not in " ".join(cells):
            continue
        found = agreements(random_policy(case), case.masks)
        measured[cells] = [
            cell for one in found for cell in (f"{one.largest:.1e}", str(one.others), f"{one.sampled:.1e}")
        ]
        print(" | ".join([*cells, *measured[cells]]), flush=True)
        body = table(HEADER, [[*cells, *measured[cells]] for cells in rows if cells in measured], text_columns=5)
        count = f"{sum(cells in measured for cells in rows)} of {len(rows)} rows"
        write_section(options.out, SECTION, f"## Exported policies\n\n{today()}, {machine()}, {count}\n\n{body}")


def in_turn(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """One row of each algorithm, then another of each: so half of a table is about all of them."""
    before: Counter[str] = Counter()
    turns = {}
    for row in rows:
        turns[row] = before[row[0]]
        before[row[0]] += 1
    return sorted(rows, key=turns.__getitem__)


def cells_of(case: Case) -> list[str]:
    """The cells of a row that say what was compared."""
    settings = ", ".join([*(["masks"] if case.masks else []), *(f"{name} {value}" for name, value in case.more)])
    return [case.algorithm, case.core, f"{case.observations}, {case.encoder}", case.actions, settings]


def rows_of(section: str) -> dict[tuple[str, ...], list[str]]:
    """The rows that were measured before, by their first five cells."""
    lines = [line.strip().strip("|") for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
    return {tuple(row[:5]): row[5:] for row in rows if len(row) == len(HEADER)}


if __name__ == "__main__":
    main()
