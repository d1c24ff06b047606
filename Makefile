# On a machine with only Python: `make demo` installs what the demo needs, `make test` the rest too (`make env` alone).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.installed-core
STAMP  := $(VENV)/.installed

.PHONY: env demo docs test results-test lint types check fuzz soak interop bounds wheel clean

env: $(STAMP)

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lpwm needs Python 3.11 or newer: run 'make PYTHON=python3.12 env'."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24' 'setuptools>=77' wheel
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(STAMP): $(CORE)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,pusht,cube]'
	@touch $@

demo: $(CORE)
	$(BIN)/lpwm demo

docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

lint: env
	$(BIN)/ruff check lpwm tests bench results
	$(BIN)/ruff format --check lpwm tests bench results

types: env
	$(BIN)/mypy

# Two workers, one BLAS thread each: the tests are many and small. LPWM_TEST_SEED=n gives them other random numbers.
test: lint types
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m 'not soak and not gpu'

# The tool of results/, the pages it writes, and their numbers computed once more (results/recompute.py).
results-test: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest results/tests -m 'not soak'

# Damaged files of every kind, seeded; CASES=n and SEED=n choose others.
fuzz: env
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz_harness.py --cases $(or $(CASES),10000) --seed $(or $(SEED),0)

soak: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests results/tests -m soak

# Against stable-worldmodel itself, installed into an environment of its own.
interop: env
	.ci/interop $(BIN)/python build/swm

# With the lowest versions that pyproject.toml allows.
bounds: env
	.ci/bounds $(BIN)/python build/lowest

wheel: env
	rm -rf dist && $(BIN)/python -m build --quiet --wheel

clean:
	rm -rf $(VENV) dist build *.egg-info .pytest_cache .ruff_cache .mypy_cache
