"""Which runs a group has, and what their directories are called."""

import re

import pytest

import birl
from birl.cli.settings_help import settings_of
from birl.cli.train_options import as_words, read_request, read_sweeps
from birl.config import ConfigError, Wrapper
from birl.run.configure import configured
from birl.run.groups.group_plan import crossed_values, plan_group, value_name

TASK = ["ppo", "CartPole-v1"]


def plan(sweep, seeds=1, **settings):
    return plan_group(lambda point: configured("ppo", "CartPole-v1", settings | point)[0], sweep, seeds)


def request(*words):
    return read_request([*TASK, *map(str, words)])


def test_seeds_count_from_the_seed_of_the_settings():
    assert [(lane.name, lane.seed, lane.config.run.seed) for lane in plan({}, 3, seed=7).lanes] == [
        ("seed-7", 7, 7),
        ("seed-8", 8, 8),
        ("seed-9", 9, 9),
    ]


def test_sweeps_cross_with_each_other_and_with_seeds():
    found = plan({"learning_rate": [1e-4, 3e-4], "discount": [0.9, 0.99]}, 2)
    assert len({lane.name for lane in found.lanes}) == len(found.lanes) == 8
    assert {(lane.config.learning_rate, lane.config.discount, lane.seed) for lane in found.lanes} == {
        (rate, discount, seed) for rate in (1e-4, 3e-4) for discount in (0.9, 0.99) for seed in (1, 2)
    }
    assert found.lanes[0].name == "learning_rate=0.0001,discount=0.9/seed-1"
    assert [lane.seed for lane in found.lanes] == [1] * 4 + [2] * 4, "every combination has its first seed first"
    assert found.sweep == {"learning_rate": (1e-4, 3e-4), "discount": (0.9, 0.99)}


def test_a_lane_has_the_settings_that_the_same_options_give():
    assert plan({"core": ["lstm"]}, hide_velocities=True).lanes[0].config == birl.configure(
        "ppo", "CartPole-v1", hide_velocities=True, core="lstm"
    ), "a core selects another preset, in a sweep too"
    words = ["--hide-velocities", "--sweep", "core=feedforward,lstm"]
    assert [lane.config for lane in request(*words).group.lanes] == [
        request("--hide-velocities", "--core", core).config for core in ("feedforward", "lstm")
    ]


def test_crossing_nothing_is_one_empty_combination():
    assert crossed_values({}) == [{}]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (3e-4, "0.0003"),
        (True, "True"),
        (None, "None"),
        ((64, 64), "64x64"),
        ((), "none"),
        (birl.linear(3e-4, 0), "linear-0.0003-0.0"),
        ({"gravity": 9.8}, "gravity-9.8"),
        (Wrapper("a.b:C", {"size": 8}), "a.b-C-size=8"),
        ("../../etc", "..-..-etc"),
    ],
)
def test_a_value_in_a_directorys_name_needs_no_quotes(value, name):
    assert value_name(value) == name
    assert re.fullmatch(r"[\w.+=-]+", name)


def test_values_with_equal_names_have_directories_of_their_own():
    functions = [birl.schedule(lambda progress, turn=turn: 1e-4 + progress**turn * 1e-4) for turn in (1, 2)]
    names = [lane.name for lane in plan({"learning_rate": functions}).lanes]
    assert len(set(names)) == 2
    assert names[1].endswith(",2/seed-1")


@pytest.mark.parametrize(
    ("sweep", "seeds", "said"),
    [
        ({"lr": [1e-4]}, 1, "sweep lr: ppo has no such setting; you may mean learning_rate"),
        ({"seed": [1, 2]}, 1, "use --seeds 5"),
        ({"run_dir": ["a"]}, 1, "a directory of its own"),
        ({"learning_rate": []}, 1, "sweep learning_rate has no values"),
        ({"learning_rate": 1e-4}, 1, "is not a list of values; write [0.0001]"),
        ({"learning_rate": "1e-4"}, 1, "is not a list of values"),
        ({"learning_rate": ["fast"]}, 1, "sweep learning_rate=fast: learning_rate: cannot read schedule 'fast'"),
        ({"epochs": [4, 4]}, 1, "sweep epochs=4 is given twice"),
        ({"learning_rate": [3e-4, "3e-4"]}, 1, "sweep learning_rate=0.0003 is given twice"),
        ({}, 0, "seeds 0 must lie between 1 and"),
    ],
)
def test_a_wrong_sweep_is_refused_with_what_to_do(sweep, seeds, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        plan(sweep, seeds)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("learning_rate=1e-4,3e-4", ["1e-4", "3e-4"]),
        ("learning-rate=linear:3e-4:0, 1e-3", ["linear:3e-4:0", "1e-3"]),
        (
            "learning_rate=piecewise:0=1e-3,0.5=1e-4,3e-4,piecewise:0=1,1=0",
            ["piecewise:0=1e-3,0.5=1e-4", "3e-4", "piecewise:0=1,1=0"],
        ),
        ("wrapper=a:B,size=8,c:D", ["a:B,size=8", "c:D"]),
        ("hidden_sizes=64 64,256", ["64 64", "256"]),
    ],
)
def test_commas_part_values_except_before_a_key(text, values):
    (found,) = read_sweeps([text], settings_of(birl.ppo.Config())).values()
    assert found == values


def test_texts_are_read_as_the_settings_types():
    lanes = request("--sweep", "hidden_sizes=64 64,32", "--sweep", "normalize_advantages=True,false").group.lanes
    assert [(lane.settings["hidden_sizes"], lane.settings["normalize_advantages"]) for lane in lanes] == [
        ((64, 64), True),
        ((64, 64), False),
        ((32,), True),
        ((32,), False),
    ]
    (lane,) = request("--sweep", "total_steps=100k").group.lanes
    assert lane.config.run.total_steps == 100_000
    (lane,) = request("--sweep", "policy_hidden_sizes=8 16").group.lanes
    assert lane.config.network.policy_hidden_sizes == (8, 16)
    (lane,) = request("--sweep", "wrapper=gymnasium.wrappers:TransformReward").group.lanes
    assert lane.config.env.wrappers == (Wrapper("gymnasium.wrappers:TransformReward"),)


def test_a_seed_alone_is_no_group():
    assert request("--seed", 3).group is None
    assert request("--seeds", 1).group is not None, "who asks for seeds gets a group, even of one"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sweep", "learning_rate"], "names no values"),
        (["--sweep", "learning_rate=1,,2"], "has an empty value"),
        (["--sweep", "epochs=1", "--sweep", "epochs=2"], "--sweep epochs is given twice"),
        (["--sweep", "epochs=x"], "sweep epochs=x: "),
        (["--sweep", "normalize_advantages=maybe"], "'maybe' is not True or False"),
        (["--sweep", "gamma=0.9"], "you may mean discount"),
        (["--sweep", "frame_skip=2"], "frame_skip is for Atari games"),
        (["--sweep", "epochs=1", "--epochs", "4"], "--epochs and --sweep epochs set the same setting"),
        (["--sweep", "epochs=1", "--epochs=4"], "--epochs and --sweep epochs set the same setting"),
        (["--jobs", "2"], "--jobs 2 is for a group of runs"),
        (["--seeds", "1.5"], "--seeds: '1.5' is not a whole number"),
    ],
)
def test_wrong_words_of_a_group_are_refused(words, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        request(*words)


def test_words_of_a_combination_are_options():
    point = {"hidden_sizes": "64 64", "share_trunk": "False", "learning_rate": "linear:1:0"}
    words = as_words(point, settings_of(birl.ppo.Config()))
    assert words == ["--hidden-sizes", "64", "64", "--no-share-trunk", "--learning-rate", "linear:1:0"]
