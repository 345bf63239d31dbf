# Every target starts from nothing but python3 (3.11 or later) and make.

PYTHON ?= python3
# Another release of PyTorch, in a virtual environment of its own: make test TORCH=2.14.1
TORCH ?=
VENV := .venv$(TORCH:%=-torch-%)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed.stamp
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile

.PHONY: help install demo examples validate test test-all device-check lint format clean

help:
	@echo "make demo      plan GPT-2 for a GPU node, then train a small GPT-2 in parallel here"
	@echo "make examples  the other examples, one of them a training that stops and goes on"
	@echo "make validate  predictions against published training runs, also with sets left out"
	@echo "make test      the tests (under 15 minutes on two cores)"
	@echo "                with TORCH=2.14.1 on that release, installed beside"
	@echo "make test-all  also the full parity matrices"
	@echo "make device-check  training on this machine's GPU by plans of one rank, then predicted against"
	@echo "                measured there (nothing without a GPU)"
	@echo "make lint      ruff, pyright, import-linter"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("autoplan needs Python 3.11 or later, not " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),)
	cp constraints.txt $(VENV)/constraints.txt
else
	grep -viE '^(torch|triton|nvidia-|cuda-)' constraints.txt > $(VENV)/constraints.txt
	echo 'torch==$(TORCH)' >> $(VENV)/constraints.txt
endif
	$(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/autoplan plan gpt2 --cluster dgx-h100 --global-batch 64
	OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 4 \
		examples/02_train_parallel.py

examples: $(INSTALLED)
	$(BIN)/python examples/03_ask_why.py
	$(BIN)/python examples/04_custom_operator.py
	$(BIN)/python examples/05_how_many_nodes.py
	rm -rf build/example
	OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 4 \
		examples/06_train.py --checkpoint build/example --stop-at 30
	OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 2 \
		examples/06_train.py --checkpoint build/example --pin tp=2

validate: $(INSTALLED)
	$(BIN)/autoplan validate benchmarks/data/training.csv
	$(BIN)/python -m benchmarks.published_steps
	$(BIN)/python -m benchmarks.fit_costs --hold-out

test: $(INSTALLED)
	$(PYTEST) -m "not slow and not device"

test-all: $(INSTALLED)
	$(PYTEST) -m "not device"

device-check: $(INSTALLED)
	$(BIN)/pytest -q -m device tests/device
	$(BIN)/python -m benchmarks.device_check

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .venv-torch-* build *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
