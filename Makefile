# Each target makes its own virtual environment in .venv and installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# The ends of what is supported. With pyenv: PYENV_VERSION=3.10:3.13 make test-matrix
OLDEST ?= python3.10
NEWEST ?= python3.13

.PHONY: demo test run-tests lint bench soak test-matrix docs clean

demo: $(VENV)/with-servers  ## five servers, several processes, one lock
	$(BIN)/python -m examples.demo

test: lint run-tests  ## all tests

run-tests: $(VENV)/with-test  # two at a time: they wait more than they work
	$(BIN)/python -m pytest -m "not soak" --numprocesses 2 --dist loadfile

lint: $(VENV)/with-lint $(VENV)/with-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/with-bench  ## side by side with other lock libraries
	$(BIN)/python -m benchmarks

soak: $(VENV)/with-test  ## the tests that take minutes
	$(BIN)/python -m pytest -m soak

test-matrix:  ## all tests on the oldest and newest Python, celery and redis
	$(MAKE) run-tests PYTHON=$(OLDEST) VENV=.venv-oldest-lowest LIMITS='--constraint tests/lowest.txt'
	$(MAKE) run-tests PYTHON=$(OLDEST) VENV=.venv-oldest
	$(MAKE) run-tests PYTHON=$(NEWEST) VENV=.venv-newest

docs: $(VENV)/with-docs
	$(BIN)/sphinx-build -W -q docs docs/_build

clean:
	rm -rf .venv* docs/_build

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/with-%: pyproject.toml $(VENV)/bin/python
	$(PIP) install $(LIMITS) --editable '.[$*]'
	@touch $@
