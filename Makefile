# `make` lists what there is. Every target installs what it needs first, into .venv and from the lock.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Without byte code every process would compile its libraries at each start.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Tests of one file stay together, since some go on with what others began; files that take long begin first (tests/conftest.py).
# Most of a test's time is waiting for processes, so that four share two cores.
SIDE_BY_SIDE := -n 4 --dist loadfile --no-loadscope-reorder
LONG := an hour's soak, a lost node, a drained one, gangs, queues of Kueue, devices, the critic, autoscaling, SGLang, an operator that dies after each write and the upgrade from the release before on a cluster, worlds of four ranks, random faults, more moments and shapes of each kind that make test has one of, 1200 random schedules of the queue, the smallest benchmarks, the tests of its peer, the broken promises
ADAPTER := tests/compat
CRD := crds/rljob.dev_rljobs.yaml
# The same for Helm, which packs nothing from outside a chart's folder.
CHART_CRD := helm/rljob-operator/files/rljob.dev_rljobs.yaml
DASHBOARDS := helm/rljob-operator/dashboards
POLICY_TABLE := helm/rljob-operator/files/policy-table.yaml
# For any Python from 3.11.0 on: some packages are needed by early patch releases only, such as Debian's.
UV_COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-emit-index-url --no-emit-find-links
# A lock for each image, since an operator has no torch: the same versions, since the whole lock constrains them.
UV_COMPILE_IMAGE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate --no-emit-index-url --no-emit-find-links --constraint requirements.lock

.PHONY: help install demo test test-local test-long test-long-local test-long-bench test-long-cluster test-soak test-unit test-integration test-schedule test-promises test-images test-gpu gpu-wheels test-peer lint ratchets format crd dashboards policy-table docs lock images release \
	cluster cluster-build cluster-build-long cluster-down test-cluster bench-quickstart bench-queue bench-restart \
	bench-cluster-restart bench-operator bench-coordinator bench-fsdp bench-layouts bench-tail bench-tail-learning clean

help: ## Lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-22s %s\n", $$1, $$2}'

install: ## Makes .venv and installs what the lock names
	@scripts/install

demo: install ## Trains the quickstart: five roles, a real Redis, reward from 0.1 to above 0.9
	$(BIN)/rljob run examples/quickstart.yaml --out rljob-out/quickstart

test: install ## Lint, types, contracts and all tests; the cluster's beside the others, since they mostly wait
	@$(BIN)/python scripts/run_targets.py test-local 'test-cluster,lint'
	@echo "All passed. make test-long has the rest: $(LONG)."

test-long: install ## What make test leaves out, since it takes long: a lost node, random schedules, benchmarks, the peer
	@scripts/install bench # before anything runs from .venv
	@$(BIN)/python scripts/run_targets.py "test-long-local,test-long-bench,test-schedule,test-promises,test-peer" \
		"test-long-cluster,bench-cluster-restart ARGS='--kills 1 --roles reference',bench-operator ARGS='--jobs 2'"

test-local: install ## Tests that need no cluster
	$(PYTEST) $(SIDE_BY_SIDE) tests/unit tests/integration

test-long-local: install
	$(PYTEST) $(SIDE_BY_SIDE) -m long tests/unit tests/integration --ignore=tests/integration/bench

test-long-bench: install
	@scripts/install bench
	$(PYTEST) -m "" tests/integration/bench # TRL trains, too, which a plain install lacks

test-long-cluster: install
	@[ -n "$${KUBECONFIG:-}" ] || $(MAKE) --no-print-directory cluster-build-long
	$(PYTEST) -m long tests/cluster # one after the other: pods of other tests would be lost with a node

test-soak: install ## Of test-long, an hour of jobs in three namespaces while the operator is killed each minute; SECONDS=600 for less
	@[ -n "$${KUBECONFIG:-}" ] || $(MAKE) --no-print-directory cluster-build
	RLJOB_SOAK_SECONDS=$(or $(SECONDS),3600) $(PYTEST) -s -m long tests/cluster/test_soak.py

test-unit: install ## Tests of pure code
	$(PYTEST) $(SIDE_BY_SIDE) -n 2 tests/unit # they wait for nothing

test-integration: install ## Tests with a real Redis and real processes
	$(PYTEST) $(SIDE_BY_SIDE) tests/integration

test-cluster: install ## Tests on a real Kubernetes: that of KUBECONFIG, else the one of `make cluster`
	@[ -n "$${KUBECONFIG:-}" ] || $(MAKE) --no-print-directory cluster-build # no test has minutes for that
	$(PYTEST) $(SIDE_BY_SIDE) -n 3 tests/cluster # every pod imports torch for itself

test-images: install ## Builds the images, the worker's too (minutes, 16 GB of disk), and runs them on the cluster
	@[ -n "$${KUBECONFIG:-}" ] || scripts/cluster-packages
	RLJOB_TEST_IMAGES=1 $(PYTEST) tests/cluster/test_images.py

test-gpu: ## Tests and figures on one GPU; Python 3.12 with torch and transformers, no network: see scripts/test-gpu
	@scripts/test-gpu $(ARGS)

gpu-wheels: install ## Fetches into .gpu what make test-gpu needs on a machine without a network
	@scripts/gpu-wheels

test-peer: install ## The adapter's tests, and those and the tutorials of the package TransferQueue against it
	@scripts/install bench
	$(PYTEST) $(SIDE_BY_SIDE) -m "" $(ADAPTER)
	$(BIN)/python -W ignore -m tests.peer.run

test-schedule: install ## Random schedules and faults of the queue, many more than the other targets run
	RLJOB_SCHEDULE_SEEDS=$${RLJOB_SCHEDULE_SEEDS:-1200} $(PYTEST) tests/integration/transfer_queue/test_schedules.py

test-promises: install ## Breaks promises of the product one by one, and shows that the tests notice; ARGS="restart-table" for some
	$(BIN)/python -m tests.promises $(ARGS)

lint: install ## Style, types, layers, and that generated files are as generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_names.py
	$(BIN)/rljob crd | diff -u $(CRD) - || { echo '$(CRD) is not what the models say: run make crd' >&2; exit 1; }
	cmp $(CRD) $(CHART_CRD) || { echo '$(CHART_CRD) is not what the models say: run make crd' >&2; exit 1; }
	$(BIN)/python -m helm.dashboards build/dashboards
	diff -ru $(DASHBOARDS) build/dashboards || { echo '$(DASHBOARDS) is not what helm/dashboards says: run make dashboards' >&2; exit 1; }
	rm -rf build/spec && $(BIN)/rljob docs build/spec
	diff -ru docs/spec build/spec || { echo 'docs/spec is not what the models say: run make docs' >&2; exit 1; }

ratchets: install ## Figures that may only fall, beside their bounds; ARGS=--write lowers these (docs/tests.md)
	@scripts/ratchets $(ARGS)

format: install ## Formats the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crd: install ## Writes the CRD from the models, and the chart's copy
	$(BIN)/rljob crd > $(CRD).new && mv $(CRD).new $(CRD)
	cp $(CRD) $(CHART_CRD)

dashboards: install ## Writes the chart's dashboards from helm/dashboards
	$(BIN)/python -m helm.dashboards $(DASHBOARDS)

policy-table: install ## Writes what the chart's admission policy shares with the operator
	$(BIN)/python -m helm.policy_table $(POLICY_TABLE)

docs: install ## Writes the spec reference from the models
	rm -rf docs/spec && $(BIN)/rljob docs docs/spec

lock: install ## Locks the newest versions that pyproject.toml allows
	$(UV_COMPILE) --upgrade --extra worker --extra math --extra megatron --extra tensorboard --extra operator --extra dev --output-file requirements.lock
	$(UV_COMPILE) --upgrade --extra worker --extra math --extra megatron --extra tensorboard --extra operator --extra dev --extra bench --constraint requirements.lock \
		--output-file requirements-bench.lock
	$(UV_COMPILE) --upgrade --extra sglang --constraint requirements-bench.lock --output-file requirements-sglang.lock
	$(UV_COMPILE_IMAGE) pyproject.toml --extra operator --output-file images/operator.lock
	$(UV_COMPILE_IMAGE) pyproject.toml --extra worker --extra math --extra megatron --output-file images/worker-gpu.lock
	$(UV_COMPILE_IMAGE) pyproject.toml --extra worker --extra math --extra megatron --excludes images/cpu-excludes.in --output-file images/worker-cpu.lock
	$(UV_COMPILE_IMAGE) images/build.in --upgrade --output-file images/build.lock
	# With all that SGLang asks for: outside of the project, whose own list of that is for a CPU (pyproject.toml).
	cd / && $(CURDIR)/$(BIN)/uv pip compile $(CURDIR)/images/sglang.in --quiet --upgrade --python-version 3.11 \
		--generate-hashes --python-platform x86_64-manylinux_2_36 --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
		--output-file $(CURDIR)/images/sglang.lock

images: ## Builds the images of operator and workers (scripts/images says what else there is)
	@scripts/images build

release: ## Makes wheel, sdist, chart, bills of materials and checksums of the tag that is checked out: scripts/release
	@scripts/release $(ARGS)

cluster: cluster-build ## Brings up a real Kubernetes on this machine and says how to use it
	@tests/cluster/node/up.sh

cluster-build: ## Builds the programs of that Kubernetes: minutes at first, then nothing
	@scripts/cluster-packages
	@tests/cluster/node/build.sh >/dev/null

cluster-build-long: cluster-build ## Builds what the long tests add to it: a scheduler of gangs, Kueue, and pretended nodes
	@tests/cluster/node/gang.sh build
	@tests/cluster/node/kueue.sh build
	@tests/cluster/node/kwok.sh build
	@tests/cluster/node/gitops.sh build

cluster-down: ## Ends it; nothing is left but the built programs and the images
	@tests/cluster/node/down.sh

bench-quickstart: install ## Samples per second beside TRL's GRPOTrainer
	@scripts/install bench
	$(BIN)/python -m tests.bench.quickstart

bench-queue: install ## The queue beside its peer; ARGS="--only w1,w3 --rounds 3" for less of it
	@scripts/install bench
	$(BIN)/python -m tests.bench.queue $(ARGS)

bench-restart: install ## Seconds from a killed rank to all roles ready again
	$(BIN)/python -m tests.bench.restart $(ARGS)

bench-cluster-restart: install ## The same on a real Kubernetes, with the chain's parts
	@scripts/cluster-packages
	$(BIN)/python -m tests.bench.cluster_restart $(ARGS)

bench-operator: install cluster-build-long ## What the operator costs at 200 jobs of 9 pretended pods, on a real API server
	env -u KUBECONFIG $(BIN)/python -m tests.bench.operator_scale $(or $(ARGS),--jobs 200)

bench-coordinator: install ## What the coordinator costs while 64, 128 and 256 ranks beat; ARGS="--ranks 256 --seconds 30"
	$(BIN)/python -m tests.bench.coordinator $(ARGS)

bench-fsdp: install ## Memory of log-probs, and tokens per second of training beside a plain transformers loop
	$(BIN)/python -m tests.bench.fsdp $(ARGS)

bench-layouts: install ## Tokens per second of two ranks by Fsdp and in layouts of Megatron, and what their imports cost
	$(BIN)/python -m tests.bench.layouts $(ARGS)

bench-tail: install ## Answers with a long tail, under each order of groups; ARGS="--half simulated --staleness 2" for less of it
	@scripts/install bench
	$(BIN)/python -m tests.bench.tail $(ARGS)

bench-tail-learning: install ## What is learnt where some groups are slow, under each order of groups
	$(BIN)/python -m tests.bench.tail.learning $(ARGS)

clean: ## Removes caches; run folders and their checkpoints stay
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
