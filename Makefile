# Each target sets itself up: the first one makes .venv and installs the project into it; after that it is instant.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := $(VENV)/.extras
BENCHMARKS := $(filter-out benchmarks/history.py benchmarks/profile_search.py benchmarks/runtime_workers.py \
	benchmarks/peer_formulas.py benchmarks/synthesised.py benchmarks/throttled.py benchmarks/torch_rivals.py \
	benchmarks/ordinary.py benchmarks/gpu.py benchmarks/gpu_steps.py benchmarks/gpu_links.py benchmarks/gpu_rehearsals.py,$(wildcard benchmarks/*.py))

# Hundreds of tests start processes: these read compiled modules, whatever the caller's environment says.
unexport PYTHONDONTWRITEBYTECODE
# NumPy's threads take longer to start than the small matrices of tests would save.
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo demo-train quick test nightly golden docs package lint types format bench gpu history profile refit accuracy \
	cards megatron targets schemas clean

# Llama-3.1-70B on 64 H100s and 128 A100s together.
demo: $(INSTALLED)
	$(BIN)/shardwright plan --model llama-3.1-70b --cluster 8x8xH100-SXM+16x8xA100-SXM-80 \
		--global-batch 512 --seq-len 8192 --tokens 100B

# Trains a small model on real text under a mixed plan: four processes, about a minute on two cores.
demo-train: $(EXTRAS)
	mkdir -p dist
	rm -rf dist/demo-train
	$(BIN)/python examples/text_corpus.py dist/corpus.bin
	$(BIN)/shardwright train examples/train-mixed-cpu.json --data dist/corpus.bin --steps 200 \
		--learning-rate 2e-3 --warmup 20 --out dist/demo-train

# Tests run in three processes, as some wait for others' processes while two cores compute, and each file in one of them:
# what a file's tests share is made once. Files come in the order of their folders: xdist would put those of few tests
# last, which are the long ones.
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

# What breaks first, in a minute or two: floors, the golden replay, plans and their texts.
quick: $(EXTRAS)
	$(PYTEST) tests/test_architecture.py tests/golden_replay tests/plans tests/reports tests/docs

# A quarter of an hour on two cores that do nothing else: half an hour of processor time.
test: $(EXTRAS)
	$(PYTEST)

# All tests, those that take many minutes too, properties on all of their examples, and the packages.
nightly: $(EXTRAS) package
	$(PYTEST) -m "nightly or not nightly"

# Takes over what the library now answers to the problems of tests/golden_replay, and prints what changed.
golden: $(EXTRAS)
	$(BIN)/python -m tests.golden_replay

# Writes the generated pages and the outputs that README and docs show anew, and builds the site in dist/site, with search
# and with the version and commit that it is of; a link that leads nowhere is an error
# (with --quiet mkdocs counts no warnings, and so knows no errors).
docs: $(EXTRAS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/make_folder_map.py
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_model_families.py
	$(BIN)/python docs/make_support.py
	$(BIN)/python -m tests.docs.output
	SITE_NAME="Shardwright $$($(BIN)/shardwright --version | cut -d' ' -f2-)" NO_MKDOCS_2_WARNING=1 \
		$(BIN)/mkdocs build

# Builds wheel and sdist in dist/package, checks both, and tries the wheel in a bare environment of every Python at hand,
# with pipx and with uv.
package: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[package]'
	$(BIN)/python -m tools.package

lint: $(EXTRAS)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(EXTRAS)
	$(BIN)/mypy --num-workers 2

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(EXTRAS)
	@set -e; for file in $(BENCHMARKS); do echo "== $$file"; PYTHONPATH=. $(BIN)/python $$file; done

# Everything that needs a GPU, in ten minutes; without one the same code on the CPU, with small sizes, which it says.
gpu: $(EXTRAS)
	$(BIN)/python benchmarks/gpu.py

# Appends the figures of this commit to benchmarks/history/searches.csv.
history: $(EXTRAS)
	$(BIN)/python benchmarks/history.py

# Where the time of a search goes; CASE is a case of benchmarks/mixed.py.
CASE ?= three-128
profile: $(EXTRAS)
	$(BIN)/python benchmarks/profile_search.py $(CASE)

# Fits the constants that ship to published runs anew; FIT=memory, or FIT="operators DIR" (docs/calibration.md).
FIT ?= overheads
refit: $(EXTRAS)
	$(BIN)/python -m tools.refit $(FIT)

# Errors of published runs by constants that have not seen them, beside the release before and the aims (docs/accuracy.md).
accuracy: $(EXTRAS)
	$(BIN)/python -m tools.refit accuracy --page docs/cross-validation.md

# Predicts the landmarks of docs/cards anew; ON is the day, CAUSE why predictions moved, where they did.
ON ?= $(if $(SOURCE_DATE_EPOCH),,$(shell date -u +%F))
CAUSE ?=
cards: $(EXTRAS)
	$(BIN)/python -m tools.refit cards --on "$(ON)" --cause "$(CAUSE)"

# Runs exports through Megatron-LM's own parser, validation and configuration builder (downloads both).
megatron: $(INSTALLED)
	TEST_PYTHON=$(CURDIR)/$(BIN)/python PYTHON=$(PYTHON) tests/targets/megatron_venv.sh .venv-megatron

# Puts exports through the own code of torchtitan, Accelerate, DeepSpeed and SkyPilot (downloads them).
targets: $(INSTALLED)
	TEST_PYTHON=$(CURDIR)/$(BIN)/python PYTHON=$(PYTHON) tests/targets/targets.sh .venv-targets

# Lists the keys of every trainer's configuration anew, from the trainers' own packages (downloads them).
schemas: $(INSTALLED)
	TEST_PYTHON=$(CURDIR)/$(BIN)/python tests/targets/schemas.sh .schemas

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist

# A virtual environment with the project and the named extras. Modules are compiled as they are imported: three in four of
# them never are, and pip would take a minute for all of them.
define installed
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt \
		--editable '.[$(1)]'
	@touch $(INSTALLED) $@
endef

$(INSTALLED): pyproject.toml constraints.txt
	$(call installed,dev)

comma := ,
# PyTorch, XGBoost and Transformers, which planning does not need but the tests of measuring, running and fitting do.
$(EXTRAS): pyproject.toml constraints.txt
	$(call installed,dev$(comma)runtime$(comma)refit$(comma)text$(comma)reference$(comma)prices$(comma)mcp)
