# make demo: the built-in model tells a story; where its time went, predicted next to measured; a plan of a known model.
# make test: linters, types, tests. make check: the linters and types alone. make slow: the tests that take minutes.
# make real: trained models from PyPI against transformers, sentence-transformers, PEFT and llama.cpp, in minutes.
# make sanitize: the tests of the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer.
# make guide: the guide as a site, in guide/index.html. make guide-check: its numbers, blocks, questions and links, in
# minutes; make guide-update: its numbers and outputs anew.
# make formulas: the page's formulas in JavaScript, anew from Python's.
# make bench: the engine beside the roofs of this machine, in minutes; let it do nothing else meanwhile.
# make bench-gpu: the same of the card that torch sees, beside transformers; writes benchmarks/gpu.md.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_SHOWS := --quiet
STEPS := 3
PIP = $(BIN)/python -m pip install $(PIP_SHOWS) --disable-pip-version-check --constraint constraints.txt
# On Linux, pip's own choice of torch brings gigabytes of CUDA, which nothing here uses.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo bench bench-gpu test slow real check sanitize guide guide-check guide-update formulas clean

# A stranger waits for it: pip shows its progress here, elsewhere errors alone.
demo: PIP_SHOWS :=
demo: STEPS := 4
demo: $(VENV)/.base
	@echo '4/4 a story, where its time went, and a plan: three commands, some 20 s'
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

# torch for CUDA is to be in the environment: TORCH_INDEX=https://download.pytorch.org/whl/cu130 make bench-gpu
bench-gpu: $(VENV)/.dev
	$(BIN)/ridgeline calibrate --device cuda
	$(BIN)/python benchmarks/gpu.py --write

# Tests start dozens of processes, which would each compile every module where Python is told to write none.
test: check
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 -m "not slow and not guide and not real"

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

# A file is run by one process, which loads its models once. Nothing is looked up in Hugging Face's hub.
real: $(VENV)/.real
	@PYTHONPATH=tests $(BIN)/python -m real.fetch
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m real tests/real

# The second library is for the exceptions of the first, which looks for them before Python has any C++.
sanitize: $(VENV)/.dev
	CXXFLAGS='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined' \
		$(BIN)/python setup.py --quiet build_py --build-lib build/sanitized
	PYTHONPATH=build/sanitized ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		$(BIN)/python -m pytest tests/ops/test_kernels*.py tests/ops/test_interleaved.py tests/sampling/test_sampling_native.py

# From the beginning: no page is left of a chapter that is gone.
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
	@echo '1/$(STEPS) an environment in $(VENV)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo '2/$(STEPS) torch without CUDA, some 200 MB, from $(TORCH_INDEX)'
	@$(PIP) --no-deps --timeout 5 --retries 0 --index-url $(TORCH_INDEX) torch \
		|| echo 'torch cannot be had there: pip chooses it in the next step, on Linux with gigabytes of CUDA'
	@echo '3/$(STEPS) ridgeline and what it needs; its kernels are compiled here, which takes up to two minutes'
	@$(PIP) --editable .
	@$(BIN)/python -c 'import torch; from ridgeline.backends.cpu import library; print("torch", torch.__version__); print("kernels", library.state())'
	@touch $@

# By the package's name, which is installed: what an extra asks for, and no second compilation.
$(VENV)/.dev: $(VENV)/.base
	@echo 'installing what the tests need into $(VENV)'
	@$(PIP) 'ridgeline[dev]'
	@touch $@

# If no index can be reached, the tests that need these packages are skipped.
$(VENV)/.real: $(VENV)/.dev
	@echo 'installing what the tests of real models need into $(VENV)'
	@if $(PIP) 'ridgeline[dev,real]' 2>/dev/null; then touch $@; \
		else echo 'peft and sentence-transformers cannot be installed: their tests are skipped'; fi

$(VENV)/.docs: $(VENV)/.dev
	@echo 'installing what the guide is built with into $(VENV)'
	@$(PIP) 'ridgeline[dev,docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist guide .mypy_cache .ruff_cache .pytest_cache .hypothesis
