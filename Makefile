# Feedline's commands. A newcomer needs two, and both set up whatever is missing:
#
#     make demo     build Feedline and watch it work
#     make test     build it and run its tests
#
# They expect a Rust toolchain, a C compiler and Python 3.11 or newer.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
FRAMEWORKS := .venv-frameworks

# Tools that were put into the environment (cmake, maturin) come before the machine's.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH):$(HOME)/.cargo/bin
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# maturin refuses to choose between two active environments.
unexport CONDA_PREFIX
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# In CI the lock file decides; at a desk cargo may complete it.
LOCKED := $(if $(CI),--locked)

# The extension module finds Python's symbols in the interpreter that loads it, so its crate has no
# test binary of its own: pytest tests it.
CRATES := --workspace --exclude feedline-python

PACKAGE_SOURCES := $(shell find crates python/src -name '*.rs' 2>/dev/null) \
	$(wildcard Cargo.toml Cargo.lock pyproject.toml crates/*/Cargo.toml python/Cargo.toml)

.PHONY: help
help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1 \t\2/p' $(MAKEFILE_LIST) | expand -t 24

# ---------------------------------------------------------------------------------- for everyone

.PHONY: demo
demo: setup ## build Feedline and watch it work
	feedline demo

.PHONY: test
test: setup ## run the tests (a few minutes the first time)
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run $(LOCKED) $(CRATES) && cargo test $(LOCKED) $(CRATES) --doc; \
	else \
		cargo test $(LOCKED) $(CRATES); \
	fi
	python -m pytest python/tests -m "not long"

.PHONY: test-long
test-long: setup ## run all tests, also the slow ones, with many more random cases
	PROPTEST_CASES=4096 cargo test $(LOCKED) $(CRATES) --lib --bins --tests -- --include-ignored
	cargo test $(LOCKED) $(CRATES) --doc
	python -m pytest python/tests

.PHONY: simulate
simulate: ## run the service's protocol through 1,000,000 simulated runs, and the whole service through 100,000: make simulate SEEDS=… STACK=… SEED=…
	FEEDLINE_SEEDS=$(or $(SEEDS),1000000) FEEDLINE_SEED=$(or $(SEED),1) \
		cargo test $(LOCKED) -p feedline-dispatcher --no-default-features --test simulation exactly_once
	@export FEEDLINE_SEEDS=$(or $(STACK),100000) FEEDLINE_SEED=$(or $(SEED),1); \
	if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run $(LOCKED) -p feedline-dispatcher -E 'binary(turmoil) & test(exactly_once)'; \
	else \
		cargo test $(LOCKED) -p feedline-dispatcher --test turmoil exactly_once; \
	fi

.PHONY: chaos
chaos: setup ## kill 1,000 workers, 200 dispatchers and 200 clients, cut 600 links, stop 200 workers, and count every sample: make chaos KILLS=… CUTS=… STOPS=…
	FEEDLINE_CUTS=$(or $(CUTS),300) cargo test $(LOCKED) -p feedline-remote --test service rough -- --nocapture
	FEEDLINE_STOPS=$(or $(STOPS),200) cargo test $(LOCKED) -p feedline-cli --test stopped -- --nocapture
	FEEDLINE_KILLS=$(or $(KILLS),1000,200,200) python -m pytest python/tests/test_chaos.py -s

.PHONY: fuzz
fuzz: ## give one reader of bytes, or all, inputs that nobody would send: make fuzz TARGET=… SECONDS=…
	scripts/fuzz.sh "$(or $(TARGET),all)" "$(or $(SECONDS),60)"

.PHONY: test-frameworks
test-frameworks: $(FRAMEWORKS)/.package ## run the tests that need torch, jax and pyarrow
	$(FRAMEWORKS)/bin/python -m pytest python/tests_frameworks

.PHONY: check
check: $(VENV)/.native ## format, lints, documentation, licences
	scripts/check-tools.sh
	cargo fmt --all --check
	cargo clippy $(LOCKED) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc $(LOCKED) --workspace --no-deps
	python scripts/dependencies.py
	@if ! cargo deny --version >/dev/null 2>&1; then \
		echo "advisories were not checked: cargo-deny is not installed"; \
	elif cargo deny fetch db >/dev/null 2>&1; then \
		cargo deny check; \
	else \
		cargo deny check licenses bans sources; \
		echo "advisories were not checked: their database cannot be reached from here"; \
	fi

.PHONY: bench
bench: setup ## compare with other loaders: make bench IMAGES=<folder of JPEG files>
	@test -n "$(IMAGES)" || { echo "usage: make bench IMAGES=<folder of JPEG files>"; exit 2; }
	bench/setup.sh dali tf torch
	python bench/w1.py --images "$(IMAGES)" $(BENCH)

.PHONY: proto
proto: ## make Rust of the service's description, after it was changed
	cargo run --quiet --manifest-path scripts/proto/Cargo.toml --target-dir target/proto -- crates/feedline-rpc
	rustfmt --edition 2024 --config-path rustfmt.toml crates/feedline-rpc/src/generated/feedline.v1.rs

.PHONY: wheel
wheel: $(VENV)/.native ## build a wheel into dist/
	maturin build --release $(LOCKED) --out dist

.PHONY: clean
clean: ## remove everything these commands made, except the benchmark's environments
	rm -rf target dist $(VENV) $(FRAMEWORKS) python/feedline/_core*.so
	find python bench crates -name __pycache__ -prune -exec rm -rf {} +

# --------------------------------------------------------------------------------------- set-up
# Each stamp file says that one stage is done; touching what it was made from does it again.

.PHONY: setup
setup: $(VENV)/.package

$(VENV)/.python: python/requirements-dev.txt scripts/venv.sh
	scripts/venv.sh $(VENV)
	$(VENV)/bin/python -m pip install --quiet --requirement python/requirements-dev.txt
	touch $@

$(VENV)/.native: scripts/native-tools.sh $(VENV)/.python
	scripts/native-tools.sh $(VENV)
	touch $@

$(VENV)/.package: $(VENV)/.native $(PACKAGE_SOURCES)
	@echo "compiling Feedline: some minutes the first time"
	maturin develop --release $(LOCKED) --quiet
	touch $@

$(FRAMEWORKS)/.python: scripts/frameworks.py scripts/venv.sh
	scripts/venv.sh $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python scripts/frameworks.py
	touch $@

$(FRAMEWORKS)/.package: $(FRAMEWORKS)/.python $(VENV)/.package
	VIRTUAL_ENV=$(CURDIR)/$(FRAMEWORKS) maturin develop --release $(LOCKED) --quiet
	touch $@
