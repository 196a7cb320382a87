# Every target sets itself up: on a fresh machine `make demo` and `make test` need only Python >= 3.11 and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
WEFT := .venv/.weft
DOCS := .venv/.docs
TESTS := .venv/.tests
# Tests start thousands of processes: without bytecode files each of them would compile all of weft again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo docs test test-fast test-gpu chaos lint bench-setup clean
setup: $(TESTS)

SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard cmake/* src/* src/kernels/*)

$(WEFT): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@

# All that tests need, a gigabyte more: those who only use weft do without.
$(TESTS): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[test,gpu-test]'
	touch $(WEFT) $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# So many processes of pytest at a time. Many tests start workers or wait for deadlines: two keep two cores busy.
TEST_PROCESSES ?= 2
PYTEST := $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal

test: lint
	$(PYTEST)

# Linters, and all tests that need no other process: one that starts a Python process is skipped when it does.
test-fast: lint
	$(PYTEST) --fast

# The kernels' tests and the oracles on this machine's GPU; where there is none it says so, and fails.
test-gpu: setup
	$(BIN)/python -m tests.on_gpu

# Faults in full: kills and damaged files play so many rounds, the other suites a tenth (in `make test` a few); tables say
# what fired.
CHAOS_ROUNDS ?= 500
CHAOS_SEED ?= 0
chaos: setup
	CHAOS_ROUNDS=$(CHAOS_ROUNDS) CHAOS_SEED=$(CHAOS_SEED) $(PYTEST) -s tests/chaos

demo: $(WEFT)
	$(BIN)/weft demo

$(DOCS): $(WEFT) pyproject.toml
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	touch $@

# The site of docs/, into build/site; a link that leads nowhere is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# DGL and PyG, beside which the benchmarks run. --no-deps: what they need is there, and nothing may bring another torch.
bench-setup: setup
	$(BIN)/pip install -q -c constraints.txt --no-deps -r benchmarks/requirements.txt
	$(BIN)/pip install -q -c constraints.txt 'matplotlib>=3.9'

clean:
	rm -rf build .venv
