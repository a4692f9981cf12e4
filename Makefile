# One environment for everything: .venv, made by the first target that needs it.

PYTHON ?= python3.11
VENV ?= .venv
# What is installed: the source tree, or a wheel (`make test INSTALL=dist/hotloop-….whl`).
INSTALL ?= -e .
EXTRAS ?= train,mujoco,dev
# Processes that run the tests; 0: one after another. By default three per two cores, since a seventh
# of a process's time is waiting.
JOBS ?= $(shell echo $$(( ($$(nproc) * 3 + 1) / 2 )))
# More of pytest's options. --no-skips fails tests that are skipped for a reason that is not listed in
# tests/conftest.py, --costs=FILE measures each test, --shuffle=SEED runs them in random order.
OPTIONS ?=
BIN := $(VENV)/bin
DEMO := runs/demo
# What trainings are measured against; sbx needs Python 3.11.
TRAIN_PEERS := stable-baselines3 sb3-contrib 'sbx-rl; python_version >= "3.11"'
# What replay buffers are measured against. tianshou comes without its requirements, one of which
# (virtualenv, unused here) contradicts constraints.txt; the second line has those that it imports.
REPLAY_PEERS := cpprb pybind11 sumtree torchrl \
	deepdiff h5py overrides pandas pettingzoo sensai-utils
# And bandits. SMPyBandits comes without its requirements: those that it imports come with MABWiser.
BANDIT_PEERS := EpsilonGreedy mabwiser omegaconf 'pymab; python_version >= "3.11"'

# Two files: what the project's environment is made of, and what the peers bring into it.
PINS := --constraint constraints.txt --constraint bench/constraints.txt

# Bytecode of the tests is kept: a run without it rewrites their assertions in each process.
unexport PYTHONDONTWRITEBYTECODE

PYTEST = $(BIN)/python -m pytest $(OPTIONS) -n $(JOBS) --dist worksteal

ifeq ($(shell command -v $(PYTHON)),)
PYTHON := python3
endif

.PHONY: demo test test-quick test-slow test-outside test-faults test-damage test-all long-ones lint docs bench
.PHONY: matrix wheel clean

# Train CartPole, look at the curve and at where the time went, play 100 episodes.
demo: $(VENV)/installed
	rm -rf $(DEMO)
	$(BIN)/hotloop train ppo --env-id CartPole-v1 --total-timesteps 200000 --seed 1 --run-dir $(DEMO)
	$(BIN)/hotloop eval $(DEMO) --episodes 100
	@echo "learning curve: $(DEMO)/learning_curve.png"

# Everything but whole trainings and the tests that start programs of others.
test: $(VENV)/installed
	$(PYTEST) -m "not slow and not outside and not gpu and not faults"

# Short tests only, for while you work. tests/long_ones.txt lists the others. They hardly wait, and a
# third process would import and collect for longer than it gains.
test-quick: JOBS := auto
test-quick: $(VENV)/installed
	$(PYTEST) --quick -q -m "not slow and not outside and not gpu and not faults"

# Whole trainings and other long tests.
test-slow: $(VENV)/installed
	$(PYTEST) -m "slow and not outside and not gpu and not faults"

# Tests with browsers, Doom, Ray clusters, py-spy and simulated power losses.
test-outside: $(VENV)/installed
	$(PYTEST) --dist loadgroup -m "outside and not gpu and not faults"

# Derive tests/long_ones.txt from the measurements of a run with --costs=build/costs.json.
long-ones: $(VENV)/installed
	$(BIN)/python -m tests.costs build/costs.json --write-long-ones

# Kills, full disks, damaged files (docs/faults.md): forty minutes on two cores. Disks are mounted in a
# namespace of its own where that is allowed, and left out where nothing is.
test-faults: $(VENV)/installed
	own=; for way in "unshare -m" "unshare -rm"; do $$way true 2>/dev/null && own=$$way && break; done; \
		$$own $(BIN)/python -m pytest -m faults tests/faults

# Its parts on damaged files, files of strangers and secrets, with a twentieth of the trials: three
# minutes. With SCALE=1: 1,000 damaged files for each reader, as every night.
test-damage: SCALE ?= 0.05
test-damage: $(VENV)/installed
	HOTLOOP_FAULTS_SCALE=$(SCALE) $(PYTEST) -m faults tests/faults/test_fuzz.py \
		tests/faults/test_checkpoints.py tests/faults/test_untrusted_runs.py \
		tests/faults/test_secrets.py

test-all: test test-outside test-slow

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m bench imports
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

# The pages of docs/ and the reference as a site; a warning is an error. No network is needed.
docs: $(VENV)/installed
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html -d build/doctrees docs build/docs
	@echo "the site: build/docs/index.html"

# Every supported version, in environments of their own (docs/versions.md). Only some of the cells:
# make matrix CELLS="base-3.10 base-3.13".
matrix: $(VENV)/installed
	$(BIN)/python -m bench matrix $(if $(CELLS),--cells $(CELLS))

# Side by side with peers; results go to bench/results.
bench: $(VENV)/installed
	$(BIN)/pip install --quiet $(PINS) $(TRAIN_PEERS) $(REPLAY_PEERS) $(BANDIT_PEERS)
	$(BIN)/pip install --quiet $(PINS) --no-deps tianshou SMPyBandits
	$(BIN)/python -m bench all

# Builds in an environment of its own. Old modules in build/ would be packed too.
wheel: $(BIN)/pip
	rm -rf dist build/lib* build/bdist*
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# A new wheel has the version of the installed one, so pip is told to replace that.
WHEEL := $(filter %.whl,$(INSTALL))
$(VENV)/installed: pyproject.toml constraints.txt $(wildcard src/hotloop/*/*.c src/hotloop/*/*/*.c) \
		$(WHEEL) | $(BIN)/pip
	@echo "installing into $(VENV); this takes some minutes once"
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt $(INSTALL)[$(EXTRAS)]
	$(if $(WHEEL),$(BIN)/pip install --quiet --force-reinstall --no-deps $(WHEEL))
	touch $@

clean:
	rm -rf .venv .venv-wheel build dist src/*.egg-info
