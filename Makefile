# Every target sets up what it needs: git, make and Python 3.11 or newer with pip are enough.

VENV   ?= .venv
PYTHON ?= $(shell scripts/find-python 3.11 3.12 3.13 3.14)
PYTEST ?= -n $(WORKERS) --dist worksteal

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check install -qq --progress-bar off

# Tests start hundreds of Python processes; without stored bytecode each of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-fast test-all check fix names soak cover mutate bench try-api mcp-conformance eval-local screens page screenshots docs package sbom lock clean

help:  ## show this text
	@echo 'Outrider: an agent engine for Python and a terminal agent on top of it.'
	@echo
	@echo 'New here?  make run    sets up $(VENV), fetches a small model once and opens the agent; it needs no key.'
	@echo '           make test   sets up $(VENV) and runs the whole test suite.'
	@echo
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-15s %s\n", $$1, $$2 }'
	@echo
	@echo 'One test:      make test PYTEST="tests/unit/test_event_bus.py -k order"'
	@echo 'Another Python: make test PYTHON=python3.12 VENV=.venv-3.12'

run: $(STAMP)  ## open the agent with the embedded model, fetched once (1.1 GB; MODEL=small: 0.5 GB)
	@scripts/first-run $(abspath $(BIN)) $(MODEL)

# For two cores. Many tests of the whole suite wait for other processes; those of the inner loop compute.
test: WORKERS = 6
test-fast: WORKERS = 4

# With PYTEST=… a part of the suite runs, with the programs that are installed.
test: $(STAMP) $(if $(filter file,$(origin PYTEST)),.cache/test-setup)  ## run every test, on two cores; installs the programs that tests need
	@PATH="$$PATH:$(CURDIR)/.cache/tools/bin" $(BIN)/python -m pytest $(PYTEST)

test-fast: $(STAMP)  ## run the inner loop: architecture, unit, contract and scenario tests (under two minutes)
	@$(BIN)/python -m pytest $(PYTEST) -m "not live and not slow" tests/architecture tests/unit tests/contract tests/scenario

test-all:  ## run every test on each of Python 3.11 to 3.14 that is found
	@scripts/test-all 3.11 3.12 3.13 3.14

check: $(STAMP)  ## lint, format, types, import layers, dead code, language
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/imports
	@$(BIN)/vulture
	@$(BIN)/basedpyright --pythonpath $(BIN)/python
	@$(BIN)/basedpyright --pythonpath $(BIN)/python --project scripts/calls.pyright.json
	@$(BIN)/python scripts/check-language

fix: $(STAMP)  ## let ruff fix and format what it can
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix .; status=$$?; $(BIN)/ruff format .; exit $$status

names: $(STAMP)  ## add new stored, sent and public names to the pinned lists in tests/architecture
	@$(BIN)/python -m tests.architecture.test_stored_names write
	@$(BIN)/python -m tests.architecture.test_public_surface
	@git diff --stat -- tests/architecture/stored_names.json tests/architecture/public_names.txt tests/architecture/public_modules.json

soak: $(STAMP)  ## run property-based tests with 40 times the examples, and fault tests, for a long time
	@OUTRIDER_SOAK=1 $(BIN)/python -m pytest -m soak --timeout 3600

cover: $(STAMP)  ## run every test with coverage and list lines that are not covered
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

mutate: $(STAMP)  ## mutation tests of the permission policy
	@$(BIN)/python scripts/mutate

try-api: $(STAMP)  ## run schemathesis against the server's OpenAPI description (SHORT=1: few requests; SEED=random)
	@scripts/try-api $(if $(SHORT),--short) $(if $(SEED),--seed $(SEED))

mcp-conformance: $(STAMP)  ## run the official MCP conformance suite (needs npm)
	@scripts/mcp-conformance

eval-local: $(STAMP)  ## run small tasks with the embedded models and print how many succeed
	@$(BIN)/python -m benchmarks.eval_local

bench: $(STAMP)  ## run the benchmarks and print every figure with its target
	@$(BIN)/python -m benchmarks.run

screens: $(STAMP)  ## draw the pictures of the terminal application in docs/screens again
	@$(BIN)/python scripts/screens.py

page:  ## build the web page from web/ into the package (needs npm)
	@cd web && npm ci --no-audit --no-fund --silent && npm run --silent check && npm run --silent build

docs: $(STAMP)  ## build the documentation site into build/site; every link is checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo 'build/site/index.html'

screenshots: $(STAMP)  ## make the pictures of the page in docs/images (needs Chromium)
	@$(BIN)/python scripts/screenshots

package: $(STAMP)  ## build the wheel and the source distribution into dist
	@rm -rf dist build/shell
	@$(BIN)/python -m hatchling build -d dist

sbom: $(STAMP)  ## write the software bill of materials (CycloneDX) to build/sbom.json
	@mkdir -p build
	@$(BIN)/python scripts/sbom $(wildcard dist/*.whl) > build/sbom.json
	@echo 'build/sbom.json'

lock:  ## update requirements/dev.lock from pyproject.toml (UPGRADE=1 takes newer versions)
	@scripts/lock $(if $(UPGRADE),--upgrade)

clean:  ## remove the environments and every cache
	rm -rf .venv .venv-3.* .cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov build dist
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# A failed installation is printed and not tried again, because the tests run without it; make clean forgets it.
.cache/test-setup: $(STAMP) scripts/test-setup web/package-lock.json
	@mkdir -p .cache
	@scripts/test-setup $(abspath $(BIN))
	@touch $@

# The package is built with the locked tools too, so nothing unlocked is ever fetched. The lock lists all dependencies: without
# --no-deps, older versions of pip look for newer versions of packages with extras, which the lock does not have.
$(STAMP): pyproject.toml requirements/dev.lock
	@test -n "$(PYTHON)" || { echo 'Outrider needs Python 3.11 or newer. Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Outrider needs Python 3.11 or newer; $(PYTHON) is older or does not run.' >&2; exit 1; }
	@echo 'Setting up $(VENV) with $(PYTHON): about a minute, once.' >&2
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(PIP) --no-deps --require-hashes -r requirements/dev.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@
