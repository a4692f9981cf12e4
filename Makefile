# One environment for everything: .venv, made by the first target that needs it.

PYTHON ?= python3.11
VENV ?= .venv
# What is installed: the source tree, or a wheel (`make test INSTALL=dist/hotloop-….whl`).
INSTALL ?= -e .
EXTRAS ?= train,mujoco,dev
# Processes that run the tests; 0: one after another.
JOBS ?= auto
# Those that run the slow ones.
SLOW_JOBS ?= 0
# More of pytest's options: --no-skips fails what is skipped for no reason on tests/conftest.py's list.
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

ifeq ($(shell command -v $(PYTHON)),)
PYTHON := python3
endif

.PHONY: demo test test-quick test-slow test-faults test-all lint docs matrix bench wheel clean

# Train CartPole, look at the curve and at where the time went, play 100 episodes.
demo: $(VENV)/installed
	rm -rf $(DEMO)
	$(BIN)/hotloop train ppo --env-id CartPole-v1 --total-timesteps 200000 --seed 1 --run-dir $(DEMO)
	$(BIN)/hotloop eval $(DEMO) --episodes 100
	@echo "learning curve: $(DEMO)/learning_curve.png"

# Everything but the tests marked slow: some minutes.
test: $(VENV)/installed
	$(BIN)/python -m pytest $(OPTIONS) -n $(JOBS) --dist worksteal \
		-m "not slow and not gpu and not faults"

# What takes a moment, for while one works; `make test OPTIONS=--note-long-ones` notes what does not.
test-quick: $(VENV)/installed
	$(BIN)/python -m pytest --quick -q -n $(JOBS) -m "not slow and not gpu and not faults"

# Whole trainings, five seeds each.
test-slow: $(VENV)/installed
	$(BIN)/python -m pytest $(OPTIONS) -n $(SLOW_JOBS) --dist loadfile \
		-m "slow and not gpu and not faults"

# Kills, full disks, damaged files (docs/faults.md): twenty minutes at most. Disks are mounted in a
# namespace of its own where that is allowed, and left out where nothing is.
test-faults: $(VENV)/installed
	own=; for way in "unshare -m" "unshare -rm"; do $$way true 2>/dev/null && own=$$way && break; done; \
		$$own $(BIN)/python -m pytest -m faults tests/faults

test-all: test test-slow

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m bench imports

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

wheel: $(VENV)/installed
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation
	@ls dist

$(VENV)/installed: pyproject.toml constraints.txt $(wildcard src/hotloop/*/*.c src/hotloop/*/*/*.c)
	@echo "installing into $(VENV); this takes some minutes once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt $(INSTALL)[$(EXTRAS)]
	touch $@

clean:
	rm -rf .venv .venv-wheel build dist src/*.egg-info
