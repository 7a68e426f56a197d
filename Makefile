# Every target installs what it needs into .venv first; a second run starts in seconds.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# What the compiled modules are tested with: all that is above them, the clients by two of their kinds.
COMPILED_TESTS := tests/proxy tests/quota_callbacks tests/plugins tests/clients/test_librdkafka.py \
	tests/clients/test_request_quota.py tests/clients/test_producer_id_quota.py tests/faults/test_limits.py

.PHONY: help demo test lint types imports unit compiled soak bench clean

help:
	@echo "make demo    three real brokers, the proxy and four clients, for about 30 s (DEMO=--keep leaves it running)"
	@echo "make test    lint, types, import contracts and all tests; those of the proxy compiled, too, with a C compiler"
	@echo "make lint | types | imports | unit    one of them alone"
	@echo "make compiled    compile what is on the path of every request, and test that"
	@echo "make soak    the long forms: soak, floods, fuzzing, kill storms"
	@echo "make bench   the same work through each way in turn, 50 minutes (BENCH=--quick for a look; docs/benchmarks.md)"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "headrace needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "this Python cannot make virtual environments; install its venv package (on Debian: python3-venv)"; exit 1; }
	@echo "installing into .venv (a minute or two, once) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m examples.demo $(DEMO)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/flake8-async $$(git ls-files 'proxy/*.py' 'plugins/*.py' 'testbed/*.py' 'examples/*.py')

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

# The pipeline in a process of its own: py4j leaves its sockets to the garbage collector, which other tests would be
# blamed for.
unit: $(STAMP)
ifdef TESTS
	$(BIN)/pytest -m "not soak" $(TESTS)
else
	$(BIN)/pytest -m "not soak" --ignore tests/pipeline
	$(BIN)/pytest -m "not soak" tests/pipeline
endif

compiled: $(STAMP)
	HEADRACE_COMPILED=$$($(BIN)/python -m testbed.compiled) && export HEADRACE_COMPILED \
		&& $(BIN)/pytest -m "not soak" $(or $(TESTS),$(COMPILED_TESTS))

# Where there is no C compiler, wheels are pure Python, which `unit` has tested.
test: lint types imports unit
	@if command -v cc >/dev/null; then $(MAKE) --no-print-directory compiled; \
	else echo "compiled modules: not built, not tested: there is no C compiler (cc)"; fi

soak: $(STAMP)
	$(BIN)/pytest -m soak --timeout 3600 $(TESTS)

bench: $(STAMP)
	@$(BIN)/python -m benchmarks.bench $(BENCH)

clean:
	rm -rf .venv .cache .hypothesis .pytest_cache .mypy_cache .ruff_cache *.egg-info
