# Each target makes its own environment; a second call finds it and is quick.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check docs deploy-test recipes

demo: .venv/installed
	$(BIN)/fedstrata run

# Three workers on two cores, as many tests wait for processes and browsers.
test: .venv/installed
	$(BIN)/pytest -n 3 -m "not deploy"

deploy-test: .venv/installed
	$(BIN)/pytest -m deploy

# In an environment that is new each time, as `pip install` makes it, with nothing but what the pages name.
FRESH := .fresh/bin
recipes:
	rm -rf .fresh
	$(PYTHON) -m venv .fresh
	$(FRESH)/pip install --quiet --constraint constraints.txt . pandas optuna pytest
	$(FRESH)/pytest tests/docs/test_data.py tests/docs/test_training.py tests/docs/test_results_page.py \
	  tests/docs/test_sweeps_page.py tests/docs/test_recordings_page.py tests/docs/test_recipes.py

# Material for MkDocs warns of a MkDocs that is not out yet.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: .venv/installed
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -m "not slow and not deploy"

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
