# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check slow format clean

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(INSTALLED)

demo: $(INSTALLED)  ## a small but real ablation, from nothing to a report
	$(BIN)/ablate run demo --scale smoke --study studies/demo

check: $(INSTALLED)  ## floors, lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test: check  ## what every change must pass
	$(BIN)/pytest -m "not slow"

slow: $(INSTALLED)  ## the tests that take minutes
	$(BIN)/pytest -m slow

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache *.egg-info
