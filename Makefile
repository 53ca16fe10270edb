# The front door: short names for what CMake (CMakePresets.json) and scripts/ do.
# `make help` lists them.

# Budget in seconds of `make fuzz` (each target) and `make soak` (each random test).
SECONDS ?= 60
# Options of `make peers`: see bench/peers/README.md.
PEERS ?=
DESTDIR ?=

.PHONY: all check demo debug asan tsan clang arm lint format docs fuzz soak peers mlx-lm \
	perplexity install clean help

all: ## Build the release: build/kvcache, build/libkvcache.so, build/libkvcache.a
	@scripts/build release

check: ## Install what is missing, build, run every test
	@scripts/setup check
	@scripts/check release

demo: ## Install what is missing, build, generate text, measure, draw: all in build/demo/
	@scripts/setup demo
	@scripts/demo

debug asan tsan: ## Build with assertions, or a sanitizer too, in build-<name>/, and test
	@scripts/setup check
	@scripts/check $@

clang: ## Build by clang in build-clang/, and test
	@scripts/setup clang
	@scripts/check clang

arm: ## Build for AArch64 in build-arm/, and test under emulation
	@scripts/setup arm
	@scripts/arm-libraries
	@scripts/check arm

lint: ## Check format, layers, words, scripts, man pages and docs
	@scripts/setup lint
	@scripts/lint

format: ## Rewrite the C files in the project's format
	@scripts/format

docs: ## Write the reference of the public headers: build/docs/html/index.html
	@scripts/setup lint
	@scripts/docs

fuzz: ## Run every fuzz target for SECONDS
	@scripts/setup fuzz
	@scripts/fuzz $(SECONDS)

soak: ## Run each random test for SECONDS on a new seed, under AddressSanitizer
	@scripts/setup check
	@scripts/soak $(SECONDS)

peers: ## Measure attention beside MLX, ONNX Runtime, ggml, ik_llama.cpp (from PyPI)
	@scripts/setup peers
	@scripts/peers $(PEERS)

mlx-lm: ## Compare snapshots with what mlx-lm (from PyPI) reads and writes
	@scripts/setup mlx-lm
	@scripts/mlx-lm

perplexity: ## Compare kinds of cache by the shipped model's perplexity over held-out text
	@scripts/setup build
	@scripts/perplexity

install: all ## Install below DESTDIR and the prefix that was configured (/usr/local)
	@DESTDIR=$(DESTDIR) cmake --install build

clean: ## Remove every build folder
	@rm -rf build build-*

help: ## List these
	@sed -n 's/^\([a-z ]*\):.*## /\1\t/p' Makefile | expand -t 18
