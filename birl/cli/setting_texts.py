"""One line about each setting: the comment behind the field, or else the text for its name here.

A field has the same meaning in every algorithm that has it. So where its name says enough to a
reader of the algorithm, the text for the command line's help is here, once.
"""

import inspect
import io
import tokenize
from functools import cache

TEXTS = {
    "activation": "nonlinearity between the layers",
    "actor_features": "features of the observation that the actor is linear in",
    "actor_learning_rate": "learning rate of the actor",
    "core": "recurrent core after the encoder; feedforward: none",
    "core_size": "units of the recurrent core",
    "critic_features": "features of the observation that the critic is linear in",
    "critic_learning_rate": "learning rate of the critic",
    "discount": "γ: weight of a reward one step later",
    "encoder": "network that reads the observation; auto: a cnn for images, else mlp; module:function: your own",
    "entropy_weight": "weight of the entropy bonus",
    "epochs": "passes over each rollout",
    "exploration": "ε: probability of a random action",
    "gae_lambda": "λ of generalized advantage estimation",
    "hidden_sizes": "units of each hidden layer",
    "kwargs": "keyword arguments for the environment: names and values",
    "layer_norm": "layer normalization after each hidden layer",
    "learning_rate": "size of a gradient step",
    "max_grad_norm": "clip the gradient to this norm; None: no clipping",
    "minibatches": "minibatches per epoch",
    "noise": "exploration noise: Ornstein-Uhlenbeck or Gaussian",
    "normalize_advantages": "scale advantages to mean 0 and deviation 1",
    "normalize_observations": "scale observations by their running mean and deviation",
    "normalize_rewards": "scale rewards by the running deviation of the return",
    "num_features": "number of Fourier features",
    "optimizer": "rule of the gradient step",
    "optimizer_epsilon": "added to the denominator of the gradient step",
    "priority_exponent": "α: how much priorities count; 0: not at all",
    "replay_size": "transitions that the replay buffer keeps",
    "rmsprop_decay": "decay of RMSProp's mean of squared gradients",
    "seed": "of environments, weights and actions; the same seed gives the same run",
    "temperature": "first α: weight of the entropy, which is then learned",
    "value_learning_rate": "learning rate of the value function",
    "value_weight": "weight of the value loss",
}
FEWEST_WORDS = 3  # a shorter comment, such as γ, says too little on the command line


def text_of(kind: type, name: str) -> str:
    """One line about a field of a settings class; "" if there is none."""
    comment = comments_of(kind).get(name, "")
    return comment if len(comment.split()) >= FEWEST_WORDS else TEXTS.get(name, comment)


@cache
def comments_of(kind: type) -> dict[str, str]:
    """The comments of a dataclass's fields, by name: behind the field, or else right above it."""
    source = inspect.cleandoc(inspect.getsource(kind))
    comments: dict[str, str] = {}
    above: list[str] = []
    line: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not line:
            above.append(token.string)
        elif token.type in (tokenize.NEWLINE, tokenize.NL) and (line or token.line.strip() == ""):
            _add_comment(comments, line, above)
            if token.type == tokenize.NEWLINE or not line:
                line, above = [], []
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            line.append(token)
    return comments


def _add_comment(comments: dict[str, str], line: list[tokenize.TokenInfo], above: list[str]) -> None:
    """Add the comment of a line `name: type = value  # comment`, if it is one."""
    if len(line) < 2 or line[0].type != tokenize.NAME or line[1].string != ":":
        return
    behind = [token.string for token in line if token.type == tokenize.COMMENT]
    if found := behind or above:
        comments[line[0].string] = " ".join(comment.lstrip("# ") for comment in found)
