# Each target makes its own environment; a second call finds it and is quick.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check docs pages-test deploy-test flower-test recipes lock audit sbom licences size wheel wheel-test

demo: .venv/installed
	$(BIN)/fedstrata run

# Tests start many processes, each of which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# A worker for each of two cores. A file is done by one worker, which makes once what its tests share; the order of files
# is that of tests/conftest.py.
WORKERS := --dist loadfile --no-loadscope-reorder
test: .venv/installed
	$(BIN)/pytest -n 2 $(WORKERS) -m "not pages and not deploy"

pages-test: .venv/installed
	$(BIN)/pytest -n 2 $(WORKERS) -m pages

deploy-test: .venv/installed
	$(BIN)/pytest -m deploy

# The tests that meet Flower, the takeover of real processes among them, with another version than that of the lock: the
# newest one that can be installed. Whatever else it needs keeps the version of the lock if it may; all other packages are
# those of the first environment.
FLOWER ?= 1.42.0
MEET_FLOWER := bad_replies busy_server certificates deploy grid protocol public_names server strategy takeover
flower-test: .flower/$(FLOWER)
	.flower/bin/python -m pytest -n 2 $(WORKERS) -m "not pages" $(MEET_FLOWER:%=tests/flower/test_%.py)

.flower/$(FLOWER): .venv/installed
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .flower
	$(VERSIONS) > .flower/versions.txt
	echo "flwr==$(FLOWER)" | $(BIN)/uv pip compile --quiet $(LINKS) - --output-file .flower/versions.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python .flower/bin/python $(LINKS) -r .flower/versions.txt
	cd .flower/lib/python*/site-packages && \
	  echo "import site; site.addsitedir('$$(echo $(CURDIR)/.venv/lib/python*/site-packages)')" > first.pth
	touch $@

# In an environment that is new each time, as `pip install` makes it, with nothing but what the pages name and what the
# tests themselves need.
FRESH := .fresh/bin
FRESH_VENV = rm -rf .fresh && $(PYTHON) -m venv .fresh && $(VERSIONS) > .fresh/versions.txt
recipes: wheel
	$(FRESH_VENV)
	$(FRESH)/pip install --quiet --constraint .fresh/versions.txt dist/*.whl pandas optuna hypothesis pytest
	$(FRESH)/pytest tests/docs/test_data.py tests/docs/test_training.py tests/docs/test_walkthroughs.py \
	  tests/docs/test_recordings_page.py tests/docs/test_recipes.py

wheel: .venv/installed
	rm -rf dist build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# The wheel by itself, outside of the clone: the demo, and a model of the run as a program.
wheel-test: wheel
	$(FRESH_VENV)
	$(FRESH)/pip install --quiet --constraint .fresh/versions.txt dist/*.whl
	cd .fresh && bin/fedstrata run --out demo && bin/fedstrata export demo models

# Material for MkDocs warns of a MkDocs that is not out yet.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

check: .venv/installed
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy -n 2
	$(BIN)/pytest -n 2 $(WORKERS) -m "not slow and not pages and not deploy"

# All packages of the environment, with hashes. Versions stay as they are where pyproject.toml admits them; the newest
# ones are taken with UPGRADE=--upgrade. The pip that comes with Python 3.11 asks that a version is
# pinned with the extras that others need of the package.
UPGRADE ?=
lock: .venv/installed
	$(BIN)/uv pip compile pyproject.toml --extra dev --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --only-binary :all: --generate-hashes --no-strip-extras --custom-compile-command "make lock" --quiet $(UPGRADE) \
	  $(LINKS) --output-file requirements.lock

# Services of advisories know torch by its version alone, not by its build. Without --strict, a package that the service
# does not know would pass.
audit: .venv/installed
	sed 's/^\(torch==[^+]*\)+cpu/\1/' requirements.lock > .venv/audited.txt
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement .venv/audited.txt

# What a build leaves in src would make the project a component of itself, with the path of this folder.
sbom: .venv/installed
	rm -rf src/fedstrata.egg-info
	mkdir -p sbom
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	  --output-file sbom/fedstrata.cdx.json .venv

licences: .venv/installed
	$(BIN)/python -m experiments.tools.licences

# Lines of code and files of each package, beside the most that it should have; it needs no environment.
size:
	$(PYTHON) experiments/tools/code_size.py

# The versions of the lock without its hashes, and torch without the build that it names. A constraint has no extras.
VERSIONS = sed -n 's/\[.*\]==/==/; s/^\([^ \#]*==[^ +]*\).*/\1/p' requirements.lock

# uv installs in a tenth of pip's time. It is itself taken from the lock, and looks where pip is told to look.
# Where the file of torch that the lock names cannot be had, HASHES=no takes the same versions from anywhere.
HASHES ?= yes
LINKS := $(addprefix --find-links ,$(PIP_FIND_LINKS))
# What is imported is compiled once here, and not by every worker of the tests anew.
UV_INSTALL := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $(LINKS)
.venv/installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	awk '/^[^ #]/ {uv = /^uv==/} uv' requirements.lock > .venv/uv.txt
	$(BIN)/python -m pip install --quiet --only-binary :all: --require-hashes --requirement .venv/uv.txt
ifeq ($(HASHES),yes)
	$(UV_INSTALL) --only-binary :all: --require-hashes --requirement requirements.lock
	$(UV_INSTALL) --no-build-isolation --no-deps --editable .
else
	$(VERSIONS) > .venv/versions.txt
	$(UV_INSTALL) --constraint .venv/versions.txt --editable ".[dev]"
endif
	touch $@
