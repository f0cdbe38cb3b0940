# Each target makes its own virtual environment in .venv and installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test lint bench soak docs clean

demo: $(VENV)/with-servers  ## five servers, several processes, one lock
	$(BIN)/python -m examples.demo

test: lint $(VENV)/with-test  ## all tests
	$(BIN)/python -m pytest -m "not soak"

lint: $(VENV)/with-lint $(VENV)/with-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/with-bench  ## side by side with other lock libraries
	$(BIN)/python -m benchmarks

soak: $(VENV)/with-test  ## the tests that take minutes
	$(BIN)/python -m pytest -m soak

docs: $(VENV)/with-docs
	$(BIN)/sphinx-build -W -q docs docs/_build

clean:
	rm -rf $(VENV) docs/_build

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/with-%: pyproject.toml $(VENV)/bin/python
	$(PIP) install --editable '.[$*]'
	@touch $@
