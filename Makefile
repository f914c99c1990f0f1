.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
QUICK := -m "not ray and not model and not gpu"
THOROUGH := -m "not cluster" --hypothesis-profile=thorough
# These compute, in two halves that take about as long: each imports and collects its own tests alone. The others wait
# for a browser or Ray most of their time, run beside them and go first.
PURE := tests/chat tests/property tests/unit
SERVED := tests/api tests/model workloads/tests training/tests
SIDE_BY_SIDE := $(PURE) $(SERVED)
PAGE := tests/page tests/front
# Where there are more cores, a half has several processes, each file in one, for what a file opens once.
HALF := $(shell n=$$(($$(getconf _NPROCESSORS_ONLN) / 2)); [ $$n -lt 2 ] || printf '%s' "-n $$n --dist loadfile")
# Where it is set, as in many images, each process compiles the package and its tests again.
unexport PYTHONDONTWRITEBYTECODE
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

help: ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 16

install: ## make .venv with everything the server needs
	@$(PYTHON) tools/install.py

install-dev: ## the same, and what tests need
	@$(PYTHON) tools/install.py --dev

serve: install ## serve on 127.0.0.1:8000 until Ctrl-C; ARGS="--model ... --set n_slots=8"
	@exec $(BIN)/cobali serve $(ARGS)

unit: install-dev ## run the pure tests, those that need neither HTTP nor Ray nor a model, in under a minute
	$(BIN)/python -m pytest -n auto $(QUICK) tests/unit tests/chat $(ARGS)

coverage: install-dev ## say what these and the API's tests cover, in two minutes and a half
	$(BIN)/coverage run -m pytest $(QUICK) tests/unit tests/chat tests/api $(ARGS)
	@echo "$$($(BIN)/coverage report --format=total) % of cobali_ray was run; $(BIN)/coverage report -m says what was not"

test: install-dev ## run every check, and a test of every promise; ARGS="tests/unit/test_core.py -k words" for some
ifdef ARGS
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest $(ARGS)
else
	@$(MAKE) --no-print-directory --jobs 5 test-ray test-page lint test-pure test-served
endif

test-computing: ## the parts of make test that compute
	@$(MAKE) --no-print-directory --jobs 2 test-pure test-served

test-pure: install-dev ## the part that needs neither HTTP nor a model
	nice -n 5 $(BIN)/python -m pytest $(HALF) $(PURE)

test-served: install-dev ## the part that computes on llama.cpp or answers HTTP, and the laboratory
	nice -n 5 $(BIN)/python -m pytest $(HALF) $(SERVED)

test-all: install-dev lint ## the same with what is marked `thorough`, before a release; hours. ARGS="workloads/tests" for some
	$(BIN)/python -m pytest -n auto --dist loadfile $(THOROUGH) $(or $(ARGS),$(SIDE_BY_SIDE) $(PAGE))
ifndef ARGS
	@$(MAKE) --no-print-directory test-ray MARKS='$(THOROUGH)'
endif

test-page: install-dev ## the part that waits for a browser, and for HAProxy
	$(BIN)/python -m pytest -n auto --dist loadfile $(PAGE)

test-ray: install-dev ## the part that waits for Ray, and for what other programs say of dashboards/
	$(BIN)/python -m pytest $(MARKS) tests $(SIDE_BY_SIDE:%=--ignore=%) $(PAGE:%=--ignore=%)

lint: install-dev ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

browser: ## install Chromium and tmux, in which tests drive the page and the terminal, by apt-get; asks for root
	$(SUDO) apt-get update -q
	$(SUDO) apt-get install -y --no-install-recommends chromium tmux

database: ## install PostgreSQL, with which the store is tested too, by apt-get; asks for root
	$(SUDO) apt-get update -q
	$(SUDO) apt-get install -y --no-install-recommends postgresql

cluster: install-dev ## three machines in network namespaces: links cut, a machine killed; Linux, root, five minutes
	$(BIN)/python -m pytest -s -m cluster tests/cluster $(ARGS)

fuzz: install-dev ## fuzz a running server with itl_target_ms=50 beside eight streams for two minutes; ARGS="--url ... --seed 2"
	$(BIN)/python -m tests.fuzz $(ARGS)

chaos: install-dev ## kill and stop the engine under streams for six minutes, and leave; ARGS="--seconds 60"
	$(BIN)/python -m tests.chaos $(ARGS)

flaky: install-dev ## run each file of tests/ray and tests/page 20 times beside two busy processes, for hours; ARGS="tests/ray/test_life.py --times 5"
	$(BIN)/python -m tools.flaky $(ARGS)

boards: install-dev ## rebuild dashboards/*.json
	$(BIN)/python dashboards/build_boards.py

reference: install-dev ## rebuild the tables of docs/api.md, and of rooms in ARCHITECTURE.md
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.rooms

docs: install-dev ## build docs/ as a site in site/, which needs no server; ARGS=serve for a preview
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build --strict)

monitoring-tools: ## fetch Prometheus, Alertmanager and Grafana's schema for the tests of dashboards/; installs nothing
	@$(PYTHON) tools/monitoring.py

accelerator: install-dev ## all that is served, with layers on devices: workers on loopback; ARGS="--device CUDA0" for a GPU
	$(BIN)/python -m pytest tests/gpu $(or $(ARGS),--device worker,worker)

gpu-report: install-dev ## the same on CUDA0, and benchmarks of what only a GPU shows, into docs/gpu-report.md; ARGS="--device worker --quick"
	$(BIN)/python -m tools.gpu_report $(ARGS)

cuda-build: ## compile llama.cpp's part for NVIDIA GPUs, an hour of a core or more; needs no CUDA and no GPU; ARGS="--arch 86"
	@VENV=.venv-cuda $(PYTHON) tools/install.py --dev
	@VENV=.venv-cuda .venv-cuda/bin/python tools/cuda_build.py $(ARGS)

clients: install-dev ## test client libraries and coding agents, each in an environment of its own; ARGS="openai codex --url http://127.0.0.1:8000"
	@$(PYTHON) tools/clients.py $(ARGS)

train: install-dev ## train builtin:tiny anew, about 80 minutes on two cores; ARGS="--threads 2"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -r training/requirements.txt
	$(BIN)/python -m training $(ARGS)

constraints: ## pin every package again, after a change of pyproject.toml
	$(BIN)/uv pip compile --quiet --no-annotate --no-header --all-extras --group dev --no-emit-package cobali-ray pyproject.toml workloads/pyproject.toml -o constraints.txt

clean: ## remove the environment and caches; the compiled llama.cpp stays in the user's cache
	rm -rf .venv .clients site .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

.PHONY: help install install-dev serve unit coverage test test-all test-computing test-pure test-served test-page test-ray lint browser database cluster fuzz chaos accelerator gpu-report cuda-build flaky boards reference docs monitoring-tools clients train constraints clean
