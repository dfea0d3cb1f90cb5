.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# Much of a test is waiting, so three at a time, in the order of tests/conftest.py. A worker that
# crashed is not replaced: with tests kept together by file, the run would never end.
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
    --durations 20

.PHONY: help run test soak check bench docs screenshots clean

help:            ## Say what each word does
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

run: .venv/run   ## Install into .venv and start everything on this machine
	@$(BIN)/flopwatch run

test: .venv/dev  ## Run the whole suite, with all real parts that it needs
	@tests/lab/prepare.sh
	$(PYTEST)

soak: .venv/dev  ## Run what takes long: a bare Debian, a newer Slurm, kill -9, a thousand nodes (50 minutes)
	@tests/lab/prepare.sh
	$(PYTEST) -m hypothesis --hypothesis-profile soak --timeout 1200
	$(BIN)/pytest -s --durations 0 tests/soak

check: .venv/dev ## Format, lint, types, who may import whom, and the house's own rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy agent server dashboard
	$(BIN)/lint-imports
	$(BIN)/python -m tests.house.rules

bench: .venv/dev ## Measure: make bench NAME=ingest; the last line is JSON
	@$(BIN)/python -m benchmarks.$(NAME)

screenshots: .venv/dev ## Take the pictures of the README
	@$(BIN)/python -m tests.lab.screenshots docs/images

clean:           ## Remove what was installed and built here
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/run: pyproject.toml
	@$(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' || { \
	    echo 'Python 3.11 or newer with venv is needed: apt-get install python3 python3-venv'; exit 1; }
	@echo 'Installing into .venv: half a minute, longer when packages must be downloaded'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[all]'
	@touch $@

.venv/dev: .venv/run
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[all,dev]'
	@touch $@
