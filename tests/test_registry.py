"""Names of algorithms: variants of Birl's own, and modules of the user's own."""

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import birl
from birl import ALGORITHMS
from birl.algos import async_q, dqn
from birl.config import ConfigError
from birl.registry import algorithm_named, import_algorithm, name_of, supports
from tests.own_algorithm import put_algorithm


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, where modules are found that nobody has imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(ALGORITHMS)
    importlib.invalidate_caches()
    yield tmp_path
    ALGORITHMS.clear()
    ALGORITHMS.update(before)
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


# Variants


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_config_has_the_name_of_its_algorithm_in_python_and_pickled(name):
    config = algorithm_named(name).Config()
    assert name_of(config) == name
    assert getattr(birl, name.replace("-", "_")) is algorithm_named(name)
    again = pickle.loads(pickle.dumps(config))  # noqa: S301
    assert (type(again), again) == (type(config), config)


def test_variants_differ_in_their_defaults_alone():
    assert dqn.Config().value.values == "mean"
    assert birl.qr_dqn.Config().value.values == "quantiles"
    assert birl.c51.Config().value.values == "categorical"
    for found in (birl.qr_dqn, birl.c51):
        assert found.Config(values="mean").value == dqn.Config().value
        assert (found.update, found.act, found.SUPPORTS) == (dqn.update, dqn.act, dqn.SUPPORTS)
    assert len(set(async_q.TARGETS.values())) == 3


@pytest.mark.parametrize(
    ("one", "other"), [("qr_dqn", "c51"), ("c51", "dqn"), ("async_sarsa", "async_nstep_q"), ("async_sarsa", "async_q")]
)
def test_a_variant_refuses_the_config_of_its_siblings_and_of_its_origin(one, other):
    found, config = getattr(birl, one), getattr(birl, other).Config()
    message = rf"^this is the Config of birl\.{other}; {one} needs birl\.{one}\.Config$"
    for refused in (
        lambda: found.validate(config),
        lambda: found.train(config),
        lambda: found.init(config, None, None),
    ):
        with pytest.raises(ConfigError, match=message):
            refused()


# Algorithms of the user's own


def test_a_module_of_ones_own_is_registered_by_its_name_and_imported_when_it_is_asked_for(place):
    put_algorithm(place, "vpg")
    assert "vpg" not in sys.modules
    assert import_algorithm("vpg:vpg") == "vpg:vpg"
    assert ALGORITHMS["vpg:vpg"] == "vpg"
    algorithm = algorithm_named("vpg:vpg")
    assert algorithm is sys.modules["vpg"]
    assert name_of(algorithm.Config()) == "vpg:vpg"
    assert supports("vpg:vpg").compiled
    assert import_algorithm("vpg:vpg") == "vpg:vpg", "once more, it is known"


def test_a_name_may_be_written_with_underscores_as_in_python(place):
    (place / "mine.py").write_text('import birl\nbirl.register("my-algo", __name__)')
    assert import_algorithm("mine:my_algo") == "mine:my-algo"


def test_an_object_of_a_module_may_be_registered(place):
    whole = birl.register("short", "birl.algos.dqn:c51")
    assert whole == "birl.algos.dqn:short"
    assert algorithm_named(whole) is birl.c51


@pytest.mark.parametrize("name", ["My-Algo", "my_algo", "", "2fast", "a:b", "-x", "x\n", None, 3])
def test_a_name_that_is_none_is_refused(name, place):
    with pytest.raises(ConfigError, match=r"is not a name; use small letters, digits and hyphens, such as my-algo$"):
        birl.register(name, "mine")
    assert not any(known.startswith("mine:") for known in ALGORITHMS)


def test_an_algorithm_of_the_script_itself_is_refused(place):
    message = r"^algorithm mine: a script itself cannot be imported by birl resume, .*; put it into a module of its own"
    for module in ("__main__", "__main__:mine"):
        with pytest.raises(ConfigError, match=message):
            birl.register("mine", module)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "mine:other",
            r"^module mine registers no algorithm other \(registered: mine:one, mine:two\); it ends with birl",
        ),
        ("empty:other", r"^module empty registers no algorithm other \(registered: none\); it ends with birl.register"),
        ("nowhere:one", r"^algorithm 'nowhere:one' cannot be imported: No module named 'nowhere'$"),
        ("needy:one", r"^algorithm 'needy:one' cannot be imported: No module named 'of_somebody_else'$"),
        (
            ".mine:one",
            r"^algorithm '.mine:one' cannot be imported: a relative name has no package here; use the module's ",
        ),
        ("mine:", r"^module mine registers no algorithm"),
    ],
)
def test_an_algorithm_that_is_not_found_is_refused_with_what_is_missing(name, message, place):
    register = "import birl\nbirl.register({!r}, __name__)\n"
    (place / "mine.py").write_text(register.format("one") + register.format("two"))
    (place / "empty.py").write_text("")
    (place / "needy.py").write_text("import of_somebody_else")
    with pytest.raises(ConfigError, match=message):
        import_algorithm(name)


@pytest.mark.parametrize("name", ["ppo", "pppo", "", ":", ":one", None, 3])
def test_a_name_without_a_module_imports_nothing(name, place, monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    assert import_algorithm(name) == name


def test_a_name_whose_module_was_not_imported_is_unknown_and_stays_so(place):
    mark = put_algorithm(place, "mine")
    with pytest.raises(ConfigError, match=r"^algorithm 'mine:one' is unknown; import mine first if you trust it, or "):
        algorithm_named("mine:one")
    assert not mark.exists()
