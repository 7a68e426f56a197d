# Every target first installs its requirements into .venv, unless they are installed already.
PYTHON ?= python3
BIN := .venv/bin
REQUIREMENTS := .venv/.requirements
STAMP := .venv/.installed

# Modules are compiled once, and not by each of a thousand processes of the tests.
unexport PYTHONDONTWRITEBYTECODE

# Two processes. tests/conftest.py decides which tests stay in one process, and runs the longest first.
PARALLEL := -n 2 --no-loadscope-reorder
# The same order and random samples in each run of `make test`, others in each of `make test-all` (SEED=default).
QUICK_PYTEST = $(BIN)/pytest --randomly-seed=$(or $(SEED),1) --durations=25
QUICK := not soak and not exhaustive
EXHAUSTIVE_PYTEST := $(BIN)/pytest --timeout 1200 --durations=25
EXHAUSTIVE := (exhaustive or hypothesis) and not soak
SOAK_PYTEST := $(BIN)/pytest -m soak --timeout 3600 --durations=25
SOAK_KILLS := tests/faults/running tests/fuzzing tests/pipeline tests/proxy
SOAK_FLOODS := tests/security/floods
# Empty without a Rust tool chain.
CARGO := $(shell command -v cargo)
CLIPPY := $(shell command -v cargo-fmt >/dev/null && command -v cargo-clippy)
CARGO_DENY := $(if $(CARGO),$(shell command -v cargo-deny))
VALGRIND := $(if $(CARGO),$(shell command -v valgrind))
VALGRIND_OPTIONS := --quiet --error-exitcode=1 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite
# Two targets at the same time.
SIDE_BY_SIDE := $(MAKE) --no-print-directory -j2

# Hashes of the files for all platforms, for the first release of Python 3.11 and all newer ones.
PIN := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links --constraint constraints.txt pyproject.toml

.PHONY: help demo test checks-and-pipeline unit-tests-as-they-run test-all lint async-lint types imports checks unit \
	unit-tests cluster-tests other-tests fuzzing-tests engine-lint engine-tests engine-memory engine-sanitizer \
	engine-valgrind engine-audit pipeline-tests exhaustive exhaustive-units exhaustive-pipeline soak soak-kills soak-rates \
	soak-floods fuzz bench docs dist hashes audit changelog clean

help:
	@echo "make demo    three real brokers, the proxy and four clients, for about 30 s (DEMO=--keep leaves it running)"
	@echo "make test    lint, types, import contracts and the quick form of all tests, in some ten minutes"
	@echo "make test-all    make test, the exhaustive and the long tests, and the audit: two hours"
	@echo "make lint | types | imports | unit    a part of make test (make unit TESTS=tests/proxy/wire for some tests)"
	@echo "make exhaustive | soak    a part of the rest (docs/contributing.md describes each)"
	@echo "make fuzz    new inputs for parsers and connections, for FUZZ_MINUTES=10 (TARGET=relays for one target)"
	@echo "make bench   the same work with and without a proxy, and with other proxies, 70 minutes (BENCH=--quick for a short run)"
	@echo "make docs    the documentation as a site in build/site, with all internal links checked"
	@echo "make dist    the sdist, a wheel and the SBOM in dist/"
	@echo "make hashes  the files in requirements/ again, after a change of pyproject.toml or constraints.txt"
	@echo "make audit   published advisories about the versions in requirements/ (AUDIT_OFFLINE=1 if no service can be reached)"
	@echo "make changelog VERSION=0.1.0    move the news fragments into CHANGELOG.md, for a release"

$(REQUIREMENTS): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "headrace needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "this Python cannot make virtual environments; install its venv package (on Debian: python3-venv)"; exit 1; }
	@echo "installing into .venv (a minute or two, once) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

# With the native data plane of the sources as they are, where cargo is installed.
$(STAMP): $(REQUIREMENTS) setup.py MANIFEST.in $(wildcard engine/Cargo.* engine/src/*.rs engine/src/*/*.rs)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'import headrace._engine' 2>/dev/null \
		|| echo "without the native data plane: $(if $(CARGO),the build has failed (pip prints the reason with --verbose),cargo is not installed)"
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m examples.demo $(DEMO)

lint: $(STAMP) engine-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The rules that ruff does not have. A minute of processor time, so not in `make test`.
async-lint: $(STAMP)
	$(BIN)/flake8-async $$(git grep -lE 'async |trio' -- 'proxy/*.py' 'plugins/*.py' 'testbed/*.py' 'examples/*.py')

# With the profile of the installed module, whose crates are compiled in engine/target.
engine-lint:
ifdef CLIPPY
	cd engine && cargo fmt --check && nice cargo clippy --release --quiet --locked --all-targets -- -D warnings
else
	@echo "engine: not checked, since cargo, rustfmt and clippy are not installed"
endif

engine-tests:
ifdef CARGO
	cd engine && nice cargo test --quiet --locked --no-default-features
else
	@echo "engine: not tested, since cargo is not installed"
endif
ifdef CARGO_DENY
	cd engine && nice cargo deny --log-level error --locked check bans licenses sources
else
	@echo "engine: licenses and sources of its crates not checked, since cargo-deny is not installed"
endif

# A run of its tests with all accesses to memory checked. The sanitizer needs a nightly tool chain and is much faster;
# under valgrind there is no vDSO, which rustix looks for unless it uses libc.
engine-memory:
	@if cargo +nightly --version >/dev/null 2>&1; then $(MAKE) --no-print-directory engine-sanitizer; \
	elif [ -n "$(VALGRIND)" ]; then $(MAKE) --no-print-directory engine-valgrind; \
	else echo "engine: memory not checked, since neither a nightly tool chain of Rust nor cargo with valgrind is installed"; fi

engine-sanitizer:
	cd engine && RUSTFLAGS=-Zsanitizer=address nice cargo +nightly test --quiet --locked --no-default-features \
		--target "$$(rustc -vV | sed -n "s,^host: ,,p")" --target-dir target/sanitizer

engine-valgrind:
	cd engine && RUSTFLAGS=--cfg=rustix_use_libc nice cargo test --quiet --locked --no-default-features \
		--target-dir target/valgrind --config 'target."cfg(all())".runner = "$(VALGRIND) $(VALGRIND_OPTIONS)"'

engine-audit:
ifdef CARGO_DENY
	@cd engine && if cargo deny fetch db >/dev/null 2>&1; then cargo deny --locked check advisories; \
	else echo "engine: advisories about its crates not checked, since their database cannot be fetched"; fi
else
	@echo "engine: advisories about its crates not checked, since cargo-deny is not installed"
endif

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

checks: lint types imports

test: $(STAMP)
	@$(SIDE_BY_SIDE) checks-and-pipeline unit-tests-as-they-run

# With a smaller share of the processors than the other tests, the longest first. The output of a target comes at its end.
checks-and-pipeline: $(STAMP)
	@nice -n 7 $(SIDE_BY_SIDE) --output-sync=target pipeline-tests checks engine-tests fuzzing-tests

unit-tests-as-they-run: $(STAMP)
	@$(MAKE) --no-print-directory --output-sync=none unit-tests

ifdef TESTS
unit: $(STAMP)
	$(QUICK_PYTEST) -m "$(QUICK)" $(TESTS)
else
unit: unit-tests engine-tests fuzzing-tests pipeline-tests
endif

# One process has all tests that need the shared clusters, so that each is started once.
unit-tests: $(STAMP)
	@$(SIDE_BY_SIDE) cluster-tests other-tests

cluster-tests: $(STAMP)
	$(QUICK_PYTEST) -m "$(QUICK) and cluster" --ignore tests/pipeline --ignore tests/fuzzing

# Those of the clusters take longest, and so have the larger share of the processors.
other-tests: $(STAMP)
	nice -n 2 $(QUICK_PYTEST) -m "$(QUICK) and not cluster" --ignore tests/pipeline --ignore tests/fuzzing

fuzzing-tests: $(STAMP)
	$(QUICK_PYTEST) -m "$(QUICK)" tests/fuzzing

# In a process of its own: py4j leaves sockets open until garbage collection, and the warnings would fail other tests.
pipeline-tests: $(STAMP)
	$(QUICK_PYTEST) -m "$(QUICK)" tests/pipeline

test-all: export SEED := default
test-all: export FUZZ_MINUTES ?= 10
test-all: export KILL_ROUNDS ?= 1
test-all: test async-lint exhaustive soak audit engine-memory

# All API versions, Kafka 3.9, and many examples for each property test. Here and in `soak`, tests execute each proxy anew.
exhaustive exhaustive-units exhaustive-pipeline soak soak-kills soak-rates soak-floods: export HEADRACE_TESTBED_PRELOADED := 0
exhaustive: $(STAMP)
	@$(SIDE_BY_SIDE) exhaustive-units $(if $(TESTS),,exhaustive-pipeline)

exhaustive-units: $(STAMP)
	$(EXHAUSTIVE_PYTEST) -m "$(EXHAUSTIVE)" --hypothesis-profile=long $(PARALLEL) $(or $(TESTS),--ignore tests/pipeline)

exhaustive-pipeline: $(STAMP)
	nice -n 5 $(EXHAUSTIVE_PYTEST) -m "exhaustive and not soak" tests/pipeline

ifdef TESTS
soak: $(STAMP)
	$(SOAK_PYTEST) $(TESTS)
else
soak: $(STAMP)
	@$(SIDE_BY_SIDE) soak-kills soak-rates
	@$(MAKE) --no-print-directory soak-floods
endif

soak-kills: $(STAMP)
	nice -n 5 $(SOAK_PYTEST) $(SOAK_KILLS)

# One test at a time: they measure memory and rates.
soak-rates: $(STAMP)
	$(SOAK_PYTEST) $(SOAK_KILLS:%=--ignore %) --ignore $(SOAK_FLOODS)

# Alone: what a client gets beside a flood is compared with what it got before.
soak-floods: $(STAMP)
	$(SOAK_PYTEST) $(SOAK_FLOODS)

# Guided by coverage where there is a wheel of atheris.
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzzing --minutes $(or $(FUZZ_MINUTES),10) $(TARGET)

bench: $(STAMP)
	@$(BIN)/python -m benchmarks.bench $(BENCH)

# External links are not checked.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m requirements.sbom dist

hashes: $(STAMP)
	$(PIN) --all-extras --group dev --output-file requirements/dev.txt
	$(PIN) --extra oauth --extra tracing --extra metrics-otlp --extra usage --output-file requirements/run.txt

# Fails without an advisory service unless AUDIT_OFFLINE=1, and for advisories that judged_advisories.toml does not have.
audit: $(STAMP) engine-audit
	@$(BIN)/python -m requirements.audit

changelog: $(STAMP)
	$(BIN)/towncrier build --yes --version $(or $(VERSION),$(error set VERSION, such as VERSION=0.1.0))

clean:
	rm -rf .venv .cache build dist engine/target src/headrace/_engine.abi3.so .hypothesis .pytest_cache .mypy_cache .ruff_cache *.egg-info src/*.egg-info
