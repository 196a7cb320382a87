# Every target sets itself up: on a fresh machine `make demo` and `make test` need only Python >= 3.11 and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test lint bench-setup clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/* src/kernels/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[test]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

demo: setup
	$(BIN)/weft demo

# DGL and PyG, beside which the benchmarks run. --no-deps: what they need is there, and nothing may bring another torch.
bench-setup: setup
	$(BIN)/pip install -q -c constraints.txt --no-deps -r benchmarks/requirements.txt
	$(BIN)/pip install -q -c constraints.txt 'matplotlib>=3.9'

clean:
	rm -rf build .venv
