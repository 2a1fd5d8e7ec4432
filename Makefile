# make demo: run the built-in model, show where its time went (predicted and measured), and plan a known model.
# make test: linters, types and tests. make check: linters and types only. make slow: tests that take minutes.
# make real: compare trained models from PyPI with transformers, sentence-transformers, PEFT and llama.cpp, in minutes.
# make emulated: compile the kernels with emulated AMX tiles, which the tests use on any processor.
# make sanitize: run the tests of the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer.
# make guide: build the guide as a site, in guide/index.html. make guide-check: check its numbers, code blocks, questions
# and links, in minutes. make guide-update: renew its numbers and outputs.
# make formulas: renew the page's JavaScript formulas from Python's.
# make bench: compare the engine with the limits of this machine, in minutes. Let the machine do nothing else meanwhile.
# make accuracy: compare predictions with published measurements; writes benchmarks/accuracy.md and the package's intervals.
# make bench-gpu: compare the engine with the limits of the GPU and with transformers; writes benchmarks/gpu.md.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_SHOWS := --quiet
STEPS := 3
PIP = $(BIN)/python -m pip install $(PIP_SHOWS) --disable-pip-version-check --constraint constraints.txt
# On Linux, a plain `pip install torch` downloads gigabytes of CUDA, which nothing here uses.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo accuracy bench bench-gpu emulated test slow real check sanitize guide guide-check guide-update formulas clean

# A new user waits for this target, so pip shows its progress. In the other targets it only shows errors.
demo: PIP_SHOWS :=
demo: STEPS := 4
demo: $(VENV)/.base
	@echo '4/4 three commands, some 20 s: a story, where its time went, and a plan'
	@printf '\n$$ %s\n%s' 'ridgeline run tales "Once upon a time" --seed 4 --quiet' 'Once upon a time'
	@$(BIN)/ridgeline run tales "Once upon a time" --seed 4 --quiet
	@printf '\n$$ %s\n' 'ridgeline trace tales "Once upon a time" --summary'
	@$(BIN)/ridgeline trace tales "Once upon a time" --summary
	@printf '\n$$ %s\n' 'ridgeline plan llama-3-8b --device h100-sxm --short'
	@$(BIN)/ridgeline plan llama-3-8b --device h100-sxm --short
	@printf '\n%s\n' 'Next: . $(BIN)/activate, then ridgeline'

bench: $(VENV)/.base
	$(BIN)/ridgeline bench engine tales --workloads benchmarks/workloads.json --rounds 3
	$(BIN)/ridgeline bench engine qwen3-0.6b --dummy-weights --workloads benchmarks/workloads.json single batch8

accuracy: $(VENV)/.dev
	$(BIN)/python benchmarks/accuracy.py

# The environment must have torch for CUDA: TORCH_INDEX=https://download.pytorch.org/whl/cu130 make bench-gpu
bench-gpu: $(VENV)/.dev
	$(BIN)/ridgeline calibrate --device cuda
	$(BIN)/python benchmarks/gpu.py --write

emulated: build/emulated/.built

build/emulated/.built: $(wildcard src/ridgeline/backends/cpu/native/*) setup.py | $(VENV)/.dev
	RIDGELINE_EMULATED_TILES=1 $(BIN)/python setup.py --quiet build_py --build-lib build/emulated
	@touch $@

# Tests start dozens of processes. With PYTHONDONTWRITEBYTECODE, each of them would compile every module.
test: check emulated
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 -m "not slow and not guide and not real"

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

# One process runs all tests of a file, so it loads its models once. Nothing is read from Hugging Face's hub.
real: $(VENV)/.real
	@PYTHONPATH=tests $(BIN)/python -m real.fetch
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m real tests/real

# libasan looks up the functions that throw exceptions before Python loads libstdc++, so that is preloaded too.
sanitize: $(VENV)/.dev
	CXXFLAGS='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined' \
		$(BIN)/python setup.py --quiet build_py --build-lib build/sanitized
	CXXFLAGS='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined' RIDGELINE_EMULATED_TILES=1 \
		$(BIN)/python setup.py --quiet build_py --build-lib build/sanitized/emulated
	PYTHONPATH=build/sanitized RIDGELINE_EMULATED=build/sanitized/emulated ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		$(BIN)/python -m pytest tests/ops/test_kernels*.py tests/ops/test_tiles.py tests/ops/test_interleaved.py tests/sampling/test_sampling_native.py

# Build from scratch, so that no page of a deleted chapter remains.
guide: $(VENV)/.docs
	@rm -rf guide build/guide
	$(BIN)/sphinx-build -q -W --keep-going -b html -d build/guide docs/guide/source guide
	@echo 'guide/index.html'

guide-check: guide
	$(BIN)/python -m docs.guide.machinery.check
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m guide

guide-update: $(VENV)/.docs
	$(BIN)/python -m docs.guide.machinery.check --update

formulas: $(VENV)/.dev
	$(BIN)/python tools/python_to_js.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/plain_english.py
	$(BIN)/mypy

$(VENV)/.base: pyproject.toml constraints.txt setup.py src/ridgeline/backends/cpu/kernel_sources.py $(wildcard src/ridgeline/backends/cpu/native/*)
	@echo '1/$(STEPS) creating an environment in $(VENV)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo '2/$(STEPS) installing torch without CUDA, some 200 MB, from $(TORCH_INDEX)'
	@$(PIP) --no-deps --timeout 5 --retries 0 --index-url $(TORCH_INDEX) torch \
		|| echo 'torch is not available there: pip chooses it in the next step, on Linux with gigabytes of CUDA'
	@echo '3/$(STEPS) installing ridgeline and its dependencies; compiling the kernels takes up to two minutes'
	@$(PIP) --editable .
	@$(BIN)/python -c 'import torch; from ridgeline.backends.cpu import library; print("torch", torch.__version__); print("kernels", library.state())'
	@touch $@

# Naming the installed package adds the packages of an extra without compiling the kernels again.
$(VENV)/.dev: $(VENV)/.base
	@echo 'installing the packages of the tests into $(VENV)'
	@$(PIP) 'ridgeline[dev]'
	@touch $@

# If no index can be reached, the tests that need these packages are skipped.
$(VENV)/.real: $(VENV)/.dev
	@echo 'installing the packages of the tests of real models into $(VENV)'
	@if $(PIP) 'ridgeline[dev,real]' 2>/dev/null; then touch $@; \
		else echo 'peft and sentence-transformers cannot be installed, so their tests are skipped'; fi

$(VENV)/.docs: $(VENV)/.dev
	@echo 'installing the packages that build the guide into $(VENV)'
	@$(PIP) 'ridgeline[dev,docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist guide .mypy_cache .ruff_cache .pytest_cache .hypothesis
