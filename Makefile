# Three commands do everything on a machine with Python 3.11+, make and pip:
#   make train   sets up, trains PPO on CartPole, shows progress and the final score
#   make test    sets up, then lint, types, import rules and the tests of the library
#   make docs    sets up, then builds the documentation site in site/ and checks its links

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SEED ?= 1

.PHONY: train test test-all test-learning test-faults test-lowest test-release package bench bench-compiled lint types imports \
	tests docs docs-serve demo format clean

train: .venv/.installed
	$(BIN)/birl train ppo CartPole-v1 --seed $(SEED)

PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
COMMON := not slow and not faults and not release

test: lint types imports tests

# Also the laboratory, pages, site, notebooks and packaging, and the whole contract without birl/accel.
test-all: test demo
	$(PYTEST) -m "later and $(COMMON)"
	BIRL_ACCEL=0 $(PYTEST) tests/test_contract.py

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-dev
	$(BIN)/mypy

imports: .venv/.installed-dev
	$(BIN)/lint-imports --no-logo

tests: .venv/.installed-dev
	$(PYTEST) -m "not later and $(COMMON)"
	BIRL_ACCEL=0 $(BIN)/pytest -n 2 tests/test_contract.py -k "ppo or qr-dqn or sac"

test-learning: .venv/.installed-dev
	XLA_FLAGS=--xla_backend_optimization_level=3 $(PYTEST) -m slow

test-faults: .venv/.installed-dev
	$(BIN)/pytest -n 2 --dist worksteal -m faults

# What may lag behind between releases: Chinese twins, and the counts of lines in pages.
test-release: .venv/.installed-dev
	$(BIN)/pytest -n 2 --dist loadfile -m release

# The lowest versions of the dependencies, on the oldest Python.
LOWEST := maths nets envs/test_make.py envs/test_snapshot.py envs/test_vector.py rollouts/test_collector.py \
	rollouts/test_replay.py rollouts/test_batch.py algos/test_ppo.py run/test_checkpoint.py run/test_policy_file.py \
	run/test_doctor.py test_cli.py test_train_options.py

test-lowest: .venv-lowest/.installed
	.venv-lowest/bin/pytest -n 2 --dist loadfile $(addprefix tests/,$(LOWEST))

package: .venv/.installed-dev
	$(BIN)/python scripts/package.py

bench: .venv/.installed-dev
	$(BIN)/python benchmarks/speed.py

bench-compiled: .venv/.installed-dev
	$(BIN)/python benchmarks/compiled.py

docs: .venv-docs/.installed
	test -e docs/demo/ort/onnxruntime-web.js || $(PYTHON) docs/demo/fetch.py || true
	.venv-docs/bin/python -m docs.website.build site

docs-serve: docs
	.venv-docs/bin/python -m http.server --bind 127.0.0.1 --directory site 8000

# What the browser demo and the C++ example need; tests are skipped without it.
demo: .venv/.installed-dev
	test -e docs/demo/ort/onnxruntime-web.js || $(BIN)/python docs/demo/fetch.py || true
	test -e build/onnxruntime/include || $(BIN)/python examples/cpp/fetch.py || true

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-docs .venv-lowest .venv-peers .venv-rejax build dist site

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Birl needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) --editable '.[dev,atari,mujoco,envpool,wandb,ray]'
	touch $@

.venv-lowest/.installed: pyproject.toml constraints-lowest.txt
	python3.11 -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check --constraint constraints-lowest.txt \
		--editable '.[atari,envpool,gymnax,tune]' beartype hypothesis pytest pytest-timeout pytest-xdist
	touch $@

.venv-docs/.installed: docs/website/requirements.txt constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement $<
	touch $@
