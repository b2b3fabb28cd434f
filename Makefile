# The tasks of this project. `make` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALLED := $(VENV)/.installed
SDKS := .sdks/.installed
CLASSES := $(VENV)/spark.jsa
BROWSER := $(VENV)/.browser

# The tests start hundreds of programs. Without a bytecode cache, each would compile Penstock again.
unexport PYTHONDONTWRITEBYTECODE

# Four workers for two cores, since some tests wait. One worker runs a group of tests, see tests/conftest.py.
PYTEST := $(BIN)/pytest --durations 15 --numprocesses 4 --dist loadfile --no-loadscope-reorder
# `make test` guards every invariant. `make test-full` adds repetitions, older SDKs, further starts of
# Spark and twenty times as many Hypothesis examples.
TEST := -m "not full" --hypothesis-profile test
TEST_FULL := --hypothesis-profile full

.PHONY: help install lock dist run test test-pythons test-full lint style types coverage bench soak docs reference pictures clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(INSTALLED) ## Create .venv with the penstock command in it

$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Penstock needs Python 3.11 or newer; choose one with make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --requirement requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# UPGRADE=1 moves to the newest versions that pyproject.toml allows; otherwise versions change only as needed.
lock: $(INSTALLED) ## Lock the dependencies in requirements.lock; UPGRADE=1 for newer versions
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
		--all-extras --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade) \
		--output-file requirements.lock pyproject.toml

# The unmodified AWS clients, each in its own environment: they pin different versions of cbor2.
$(SDKS): tests/conformance/install_sdks.py $(INSTALLED)
	$(BIN)/python tests/conformance/install_sdks.py
	@touch $@

# An archive of Spark's loaded classes: the tests start Spark two dozen times.
$(CLASSES): tests/spark/archive_classes.py $(INSTALLED)
	$(BIN)/python -m tests.spark.archive_classes

# A browser for the tests of the dashboard. Without a browser they are skipped.
$(BROWSER): tests/web/install_chromium.sh $(INSTALLED)
	@tests/web/install_chromium.sh
	@touch $@

run: $(INSTALLED) ## Run the broker, exports, simulated AWS services, demo devices and the dashboard
	$(BIN)/penstock up --sandbox --demo --root "$(CURDIR)/.run"

lint: style types ## Check style, types and the direction of imports

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(INSTALLED)
	$(BIN)/mypy

# mypy runs beside the tests. In a new clone, collecting once first compiles the test modules for all workers.
test: style $(SDKS) $(CLASSES) $(BROWSER) ## Run all checks, and all tests but the `full` ones
	@$(BIN)/mypy > $(VENV)/types.log 2>&1 & types=$$!; \
	test -d tests/__pycache__ || $(BIN)/pytest --collect-only -q > /dev/null; \
	$(PYTEST) $(TEST); tests=$$?; \
	wait $$types; types=$$?; \
	echo "$(BIN)/mypy"; cat $(VENV)/types.log; \
	exit $$((tests | types))

coverage: $(SDKS) $(CLASSES) $(BROWSER) ## Measure the branch coverage of src by `make test`'s tests
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder $(TEST)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# The versions of Python on the PATH, each with its own environment.
PYTHONS ?= $(foreach version,3.11 3.12 3.13 3.14,$(if $(shell python$(version) --version 2>/dev/null),$(version)))
FAST_TESTS := tests/model tests/wire tests/store tests/client tests/broker

test-pythons: ## Run the fast tests with each of Python 3.11 to 3.14 on the PATH
	@for version in $(PYTHONS); do \
		echo "Python $$version"; \
		$(MAKE) --no-print-directory install VENV=.pythons/$$version PYTHON=python$$version && \
		.pythons/$$version/bin/pytest -q $(TEST) --numprocesses 4 --dist loadfile $(FAST_TESTS) || exit; \
	done

test-full: lint $(SDKS) $(CLASSES) $(BROWSER) ## Run all checks and tests, with repetitions, older SDKs and more examples
	$(PYTEST) $(TEST_FULL)

bench: $(SDKS) ## Run the benchmarks against Redis Streams, NATS JetStream, Parquet and boto3
	$(BIN)/python -m benchmarks

# MINUTES is the duration. SEED repeats the plan of an earlier run.
MINUTES ?= 30
soak: $(SDKS) $(CLASSES) ## Run load with kills, damage and power cuts for MINUTES=30, and check every message
	$(BIN)/python -m soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

docs: reference ## Build the documentation as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "open site/index.html"

reference: $(INSTALLED) ## Generate docs/settings.md, docs/cli.md and docs/metrics.md
	$(BIN)/penstock settings > docs/settings.md
	$(BIN)/python -m penstock.cli.cli_reference > docs/cli.md
	$(BIN)/python -m penstock.web.metrics_reference > docs/metrics.md

# The wheel is built from the unpacked source distribution, with the locked build backend.
dist: $(INSTALLED) ## Build and check the wheel and the source distribution in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	DIST=dist $(BIN)/pytest -q tests/packaging/test_archives.py

pictures: $(BROWSER) $(CLASSES) ## Take the screenshots of the dashboard for the documentation
	DASHBOARD_PICTURES=docs/images $(BIN)/pytest tests/integration/test_everything_at_once.py

clean: ## Remove installed files and data of runs
	rm -rf $(VENV) .pythons .sdks dist .run .run-camera wind-farm spark-warehouse site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
