"""How much code lies between one environment step and one gradient step of PPO, with a feed-forward
network and discrete actions.

    python docs/reading_path.py

Prints, in reading order, every definition on the way and its lines of code: no blank lines,
comments or docstrings. The way begins where the collector calls `envs.step` and ends with new
weights. What `envs.step` does for single Gymnasium environments is counted apart, and so is how a
small network's `act` is run quickly, which changes nothing of what it does. Diagnostics and the
search for NaN are left out, and so is normalisation, which is off by default.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "birl"
TRAINING = {
    "types.py": ["Rollout", "Action", "Step", "Update"],
    "data/collect.py": [
        "Collector.__init__",
        "Collector.start",
        "Collector.__call__",
        "Collector.empty_rollout",
        "Collector._acting",
        "Collector._fill",
        "for_envs",
        "_empty_rollout",
        "_write",
        "_put",
    ],
    "maths/returns.py": ["backward_recurrence", "gae", "_td_errors", "_successor_values", "_continues", "_next_row"],
    "nets/layers.py": ["Linear"],
    "nets/encoders.py": ["Vector", "MLP", "Encoder"],
    "nets/cores.py": ["FeedForward"],
    "nets/acting.py": ["Evaluation", "act", "evaluate_rollout", "but_last"],
    "nets/models.py": ["Part", "PolicyHead", "_distribution", "Trunk", "ActorCritic", "features_of"],
    "maths/distributions.py": ["Categorical"],
    "maths/losses.py": ["masked_mean", "normalize", "clipped_surrogate", "value_loss", "_ratios"],
    "maths/schedules.py": ["value_at"],
    "data/minibatch.py": ["shuffled_parts", "shuffled_steps"],
    "nets/optimizers.py": ["make_optimizer", "gradient_step"],
    "algos/ppo.py": [
        "State",
        "Batch",
        "Weights",
        "Learner",
        "policy",
        "make_batch",
        "loss",
        "learn_minibatch",
        "learn_epoch",
        "update",
        "train",
    ],
}
ENVIRONMENTS = {
    "envs/serial.py": ["SerialEnvs.step", "SerialEnvs._begin", "SerialEnvs._own_actions"],
    "envs/observations.py": [
        "ObservationLayout.empty",
        "ObservationLayout.write",
        "ObservationLayout._part",
        "ObservationLayout.tree",
        "read_flag",
    ],
    "envs/spaces.py": ["action_reader"],
}
ACTING = {
    "data/stepwise.py": [
        "take_apart",
        "compiled",
        "step_keys",
        "_inline",
        "_constant",
        "_needed",
        "_evaluate",
        "_products",
    ],
    "data/numpy_program.py": [
        "WaitsFor",
        "Value",
        "Operation",
        "Program",
        "numpy_program",
        "_in_numpy",
        "_placed",
        "_is_matrix_product",
        "_brings",
    ],
}
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def code_lines(text: str) -> set[int]:
    """The numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def definitions(node: ast.Module | ast.ClassDef, prefix: str = "") -> dict[str, range]:
    """Where each function and class, and each method of a class, lies."""
    found: dict[str, range] = {}
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            first = min([part.lineno, *(decorator.lineno for decorator in part.decorator_list)])
            found[prefix + part.name] = range(first, (part.end_lineno or 0) + 1)
        if isinstance(part, ast.ClassDef):
            found |= definitions(part, f"{part.name}.")
    return found


def count(path: dict[str, list[str]]) -> int:
    """The lines of code of these definitions, printed file by file."""
    total = 0
    for name, wanted in path.items():
        text = (PACKAGE / name).read_text(encoding="utf-8")
        lines, where = code_lines(text), definitions(ast.parse(text))
        counts = {definition: len(lines & set(where[definition])) for definition in wanted}
        total += sum(counts.values())
        shown = ", ".join(f"{definition} {count}" for definition, count in counts.items())
        sys.stdout.write(f"{sum(counts.values()):4} of {len(lines):3} in birl/{name}: {shown}\n")
    return total


def main() -> None:
    sys.stdout.write(f"{count(TRAINING):4} lines from envs.step to new weights\n\n")
    sys.stdout.write(f"{count(ENVIRONMENTS):4} lines inside envs.step\n\n")
    sys.stdout.write(
        f"{count(ACTING):4} lines that run `act` in NumPy between two steps, where it is a small network\n"
    )


if __name__ == "__main__":
    main()
