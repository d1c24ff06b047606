# `make test` on a machine with only Python builds .venv and runs everything; `make env` does the first half.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: env demo docs test results-test lint types check soak wheel clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lpwm needs Python 3.11 or newer: run 'make PYTHON=python3.12 env'."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24' 'setuptools>=77' wheel
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,pusht,cube]'
	@touch $@

demo: env
	$(BIN)/lpwm demo

docs: env
	$(BIN)/mkdocs build --quiet

lint: env
	$(BIN)/ruff check lpwm tests bench results
	$(BIN)/ruff format --check lpwm tests bench results

types: env
	$(BIN)/mypy

# Two workers, one BLAS thread each: the tests are many and small. LPWM_TEST_SEED=n gives them other random numbers.
test: lint types
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m 'not soak and not gpu'

# The tool of results/ and the page it writes.
results-test: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest results/tests -m 'not soak'

soak: env
	$(BIN)/python -m pytest tests results/tests -m soak

wheel: env
	rm -rf dist && $(BIN)/python -m build --quiet --wheel

clean:
	rm -rf $(VENV) dist build *.egg-info .pytest_cache .ruff_cache .mypy_cache
