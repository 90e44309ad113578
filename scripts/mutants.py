"""Checks that the tests find mistakes: python scripts/mutants.py

Each mutant is one changed line of birl/. It is applied to a copy of the tree, and the tests of its
file are run there, until the first fails. A mutant that no test finds has survived, and the command
ends with 1. Only tests of `make test` count.

    python scripts/mutants.py              all of them, about a quarter of an hour
    python scripts/mutants.py maths lock   those whose file has one of these words in its path
    python scripts/mutants.py --list       only check that each line is there once
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TIER = "not later and not slow and not faults and not release"
SECONDS = 1200  # a mutant may also hang
FAILED = 1  # pytest's exit code where tests failed; others say that they could not be run


class Mutant(NamedTuple):
    """A part of a line that occurs once in its file, and what to write in its place."""

    file: str  # in birl/
    old: str
    new: str
    other_test: str = ""  # in tests/; else the file of the same name, with test_ before it

    @property
    def test(self) -> str:
        """The file of tests that must fail."""
        folder, _, name = self.file.rpartition("/")
        return f"tests/{self.other_test or f'{folder}/test_{name}'}"


COLLECTING = "rollouts/test_collector.py"

MUTANTS = [
    # Returns, losses and distributions
    Mutant("maths/returns.py", "& ~truncated & _next_row", "& _next_row"),
    Mutant("maths/returns.py", "where(terminated.astype(bool), 0.0,", "where(False, 0.0,"),
    Mutant("maths/returns.py", "discount * gae_lambda * _cont", "gae_lambda * _cont"),
    Mutant("maths/returns.py", "jnp.where(valid.astype(bool), errors, 0.0)", "errors"),
    Mutant("maths/returns.py", "jnp.arange(n)[:, None]", "jnp.arange(1, n + 1)[:, None]"),
    Mutant("maths/returns.py", "jnp.minimum(clip_c, ratios)", "ratios"),
    Mutant("maths/returns.py", "_next_row(cuts, 0.0)", "cuts"),
    Mutant("maths/losses.py", "jnp.minimum(ratios * adv", "jnp.maximum(ratios * adv"),
    Mutant("maths/losses.py", "total = jnp.sum(weights)", "total = jnp.sum(weights * 0 + 1)"),
    Mutant("maths/losses.py", "jnp.maximum((values - t", "jnp.minimum((values - t"),
    Mutant("maths/losses.py", "advantages - kl_weight", "advantages + kl_weight"),
    Mutant("maths/value_distributions.py", "(errors < 0)", "(errors > 0)"),
    Mutant("maths/value_distributions.py", "discounts[..., None] * numbers", "numbers"),
    Mutant("maths/trust_region.py", "jnp.sqrt(2.0 * max_kl", "jnp.sqrt(max_kl"),
    Mutant("maths/gaussians.py", "= log_slopes(before)", "= -log_slopes(before)", "maths/test_squashed.py"),
    Mutant("maths/exploration.py", "(1.0 - epsilon) * greedy", "greedy"),
    Mutant("maths/statistics.py", "share * (1.0 - share) * difference", "0 * difference"),
    # Networks
    Mutant("nets/normalize.py", "jnp.where(rollout.resets, 0.0, before)", "before"),
    Mutant("nets/optimizers.py", "jnp.minimum(1.0, max_grad_norm", "(max_grad_norm"),
    Mutant("nets/optimizers.py", "(1.0 - rate) * t + rate * p", "rate * t + (1.0 - rate) * p"),
    Mutant("nets/recurrent.py", "before.ndim - 1)), start, before)", "before.ndim - 1)), before, before)"),
    # Rollouts
    Mutant("rollouts/source.py", "self.resets = ~step.valid", "self.resets = step.terminated", COLLECTING),
    Mutant("rollouts/source.py", "terminated[t] = step.terminated", "terminated[t] = step.truncated", COLLECTING),
    Mutant("rollouts/source.py", "self.memory = action.memory", "self.memory = self.memory", COLLECTING),
    Mutant("rollouts/batch.py", "advantages + values[:-1]", "advantages"),
    Mutant("rollouts/replay.py", "where(at(columns.terminated, last, envs), 0.0,", "where(False, 0.0,"),
    Mutant("rollouts/replay.py", "discounts * at(columns.rewards", "at(columns.rewards"),
    Mutant("rollouts/replay.py", "~arrays.columns.valid[rows % shape.ring_size, envs]", "missing & False"),
    Mutant("rollouts/sum_tree.py", ">= pairs[..., 0]", ">= pairs[..., 1]"),
    Mutant("rollouts/hindsight.py", "rng.integers(steps, length)", "rng.integers(0 * steps, length)"),
    Mutant("rollouts/learning.py", "owed = owed + np", "owed = np", "rollouts/test_learning_from_replay.py"),
    Mutant("rollouts/batch.py", "lambda m: m[order]", "lambda m: m[jnp.sort(order)]", "rollouts/test_minibatch.py"),
    Mutant("rollouts/episode_stats.py", "lengths[t, i] - before[1, i]", "lengths[t, i]"),
    # Algorithms
    Mutant("algos/ppo.py", "- config.entropy_weight * entropy", "+ config.entropy_weight * entropy"),
    Mutant("algos/ppo.py", "stopped |= metrics", "stopped = metrics"),
    Mutant("algos/dqn.py", "(next_values if config.double else next_targets)", "next_targets"),
    Mutant("algos/dqn.py", ".min()) ** -config", ".min()) ** config"),
    Mutant("algos/td3.py", ".min(axis=0)", ".max(axis=0)"),
    Mutant("algos/td3.py", "jnp.clip(noise, -limit, limit)", "noise"),
    Mutant("algos/sac.py", "(next_values - jnp.exp(", "(next_values + jnp.exp("),
    Mutant("algos/sac.py", "(entropy) - target_entropy)", "(entropy) + target_entropy)"),
    Mutant("algos/trpo.py", "parameters, size * direction", "parameters, direction"),
    Mutant("algos/acer.py", "network, 1.0 - config.average_decay", "network, config.average_decay"),
    Mutant("algos/reinforce.py", "advantages = returns - values if", "advantages = returns + values if"),
    Mutant("algos/async_q.py", "fraction, 1.0) * (", "fraction, 2.0) * (", "asynchronous/test_exploration.py"),
    # Files of runs
    Mutant("run/checkpoint.py", "hexdigest() != digest", "hexdigest() == ''"),
    Mutant("run/checkpoint.py", "if problem := non_finite_leaf(tensors):  #", "if problem := '':  #"),
    Mutant("run/checkpoint.py", "or seal != _sha256(manifest)", "or seal == ''"),
    Mutant("run/checkpoint.py", "int(path.name))  # as", "path.name)  # as"),
    Mutant("run/lock.py", "and not _is_dead(holder)", "and False"),
    Mutant("run/trust.py", "and not found.st_mode & 0o077", ""),
]  # fmt: skip


def main() -> int:
    options = parse()
    chosen = [mutant for mutant in MUTANTS if not options.words or any(word in mutant.file for word in options.words)]
    if wrong := [problem for mutant in chosen if (problem := misplaced(mutant))]:
        print("\n".join(wrong))
        return 1
    if options.list:
        print(f"{len(chosen)} mutants, and each line is there once")
        return 0
    with tempfile.TemporaryDirectory(prefix="birl-mutants-") as folder:
        tree = copy_of_the_tree(Path(folder))
        every = sorted({mutant.test for mutant in chosen})
        print(f"{len(chosen)} mutants; first {len(every)} files of tests without any", flush=True)
        code, said = run_tests(tree, every)
        if code != 0:
            print(f"the tests fail without a mutant:\n{said}")
            return 1
        alive = [mutant for mutant in chosen if not is_killed(mutant, tree)]
    print(f"{len(chosen) - len(alive)} of {len(chosen)} were killed")
    return 1 if alive else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only files with one of these words in their path")
    parser.add_argument("--list", action="store_true", help="run nothing")
    return parser.parse_args()


def misplaced(mutant: Mutant) -> str:
    """Why this mutant cannot be applied; "" if it can."""
    if not (ROOT / mutant.test).exists():
        return f"birl/{mutant.file}: there is no {mutant.test}"
    path = ROOT / "birl" / mutant.file
    times = path.read_text(encoding="utf-8").count(mutant.old) if path.exists() else 0
    if times == 1:
        return ""
    found = (file for file in (ROOT / "birl").rglob("*.py") if mutant.old in file.read_text(encoding="utf-8"))
    places = ", ".join(file.relative_to(ROOT).as_posix() for file in found)
    return f"birl/{mutant.file} has {mutant.old!r} {times} times, not once; it is in: {places or 'no file'}"


def copy_of_the_tree(folder: Path) -> Path:
    """A copy of all files that git knows, with changes that are not committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def is_killed(mutant: Mutant, tree: Path) -> bool:
    """Whether a test fails with this mutant. The copy is as before afterwards."""
    path = tree / "birl" / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, said = run_tests(tree, [mutant.test])
    finally:
        path.write_text(text, encoding="utf-8")
    killed = code == FAILED
    found = next((line for line in said.splitlines() if line.startswith("FAILED")), "").split(" - ")[0]
    print(f"{'killed  ' if killed else 'SURVIVED'} {mutant.file}: {mutant.old} -> {mutant.new}   {found}", flush=True)
    if code not in (0, FAILED):
        print(f"pytest ended with {code}: this is no mutant that tests could find\n{said}")
    return killed


def run_tests(tree: Path, tests: list[str]) -> tuple[int, str]:
    """The exit code of pytest, and its output; a test that hangs has failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", TIER, "-rf", "--tb=line"]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        finished = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"FAILED by taking more than {SECONDS} s"
    return finished.returncode, finished.stdout + finished.stderr


if __name__ == "__main__":
    sys.exit(main())
