# Everything that is done with this project. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SDKS := .sdks/.installed
CLASSES := $(VENV)/spark.jsa
BROWSER := $(VENV)/.browser

# Hundreds of programs are started by the tests: where nothing is cached, each compiles Penstock anew.
unexport PYTHONDONTWRITEBYTECODE

# Three workers for two cores, since some tests wait. One worker runs a group of tests, see tests/conftest.py.
PYTEST := $(BIN)/pytest --durations 15 --numprocesses 3 --dist loadgroup --no-loadscope-reorder
# `make test` guards every invariant. `make test-full` adds repetitions, older SDKs, further starts of
# Spark and ten times as many Hypothesis examples.
TEST := -m "not full" --hypothesis-profile test
TEST_FULL := --hypothesis-profile full

.PHONY: help install run test test-full lint style types coverage bench soak docs reference pictures clean

help: ## List what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(INSTALLED) ## Create .venv with the penstock command in it

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fast,web,spark,sandbox,java,docs,dev]'
	@touch $@

# The unmodified AWS clients, each in an environment of its own: they pin other versions of cbor2.
$(SDKS): tests/conformance/install_sdks.py $(INSTALLED)
	$(BIN)/python tests/conformance/install_sdks.py
	@touch $@

# Spark's classes as Java has loaded them once: the tests start Spark two dozen times.
$(CLASSES): tests/spark/archive_classes.py $(INSTALLED)
	$(BIN)/python -m tests.spark.archive_classes

# A browser for the tests of the page. Without one they are left out, and say so.
$(BROWSER): tests/web/install_chromium.sh $(INSTALLED)
	@tests/web/install_chromium.sh
	@touch $@

run: $(INSTALLED) ## Run broker, exports, a sandboxed cloud, demo devices and the dashboard
	$(BIN)/penstock up --sandbox --demo --root "$(CURDIR)/.run"

lint: style types ## Check style, types and the direction of imports

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(INSTALLED)
	$(BIN)/mypy

# mypy runs beside the tests. Collecting once first compiles the test modules for all workers.
test: style $(SDKS) $(CLASSES) $(BROWSER) ## Run every check, and the tests of everything that is promised
	@$(BIN)/mypy > $(VENV)/types.log 2>&1 & types=$$!; \
	$(BIN)/pytest --collect-only -q > /dev/null; \
	$(PYTEST) $(TEST); tests=$$?; \
	wait $$types; types=$$?; \
	echo "$(BIN)/mypy"; cat $(VENV)/types.log; \
	exit $$((tests | types))

coverage: $(SDKS) $(CLASSES) $(BROWSER) ## Measure the branch coverage of src by `make test`'s tests
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --numprocesses 3 --dist loadgroup --no-loadscope-reorder $(TEST)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

test-full: lint $(SDKS) $(CLASSES) $(BROWSER) ## The same with further starts of Spark and ten times the examples
	$(PYTEST) $(TEST_FULL)

bench: $(SDKS) ## Measure against Redis Streams, NATS JetStream, Parquet and boto3, in the same run
	$(BIN)/python -m benchmarks

# MINUTES is how long, SEED repeats the plan of an earlier run.
MINUTES ?= 30
soak: $(SDKS) $(CLASSES) ## Load, kill, damage and cut the power for MINUTES=30, and check every message
	$(BIN)/python -m soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

docs: reference ## Build the documentation as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "open site/index.html"

reference: $(INSTALLED) ## Write the pages that are generated from the code
	$(BIN)/penstock settings > docs/settings.md
	$(BIN)/python -m penstock.cli.cli_reference > docs/cli.md
	$(BIN)/python -m penstock.web.metrics_reference > docs/metrics.md

pictures: $(BROWSER) $(CLASSES) ## Take the pictures of the dashboard in the documentation
	DASHBOARD_PICTURES=docs/images $(BIN)/pytest tests/integration/test_everything_at_once.py

clean: ## Remove what was installed and what runs left behind
	rm -rf $(VENV) .sdks .run .run-camera wind-farm spark-warehouse site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
