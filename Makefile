# The same commands on a laptop and in CI.  `make run` and `make test` set up what they need (kofn/run/setup.sh).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules
# Containers often forbid bytecode. Then each of the hundreds of interpreters that tests start would compile all modules.
unexport PYTHONDONTWRITEBYTECODE

CONFIG ?=
ARGS ?=
FUZZ_S ?= 600
SOAK_S ?= 3600
SWITCH ?= 127.0.0.1:50051
ROOM ?=
PYTEST = .venv/bin/python -m pytest --maxprocesses 4 --dist loadfile --numprocesses
# Whole runs wait for a third of their time: one process more than cores keeps the cores busy.
PROCESSES = $$(($$(nproc) + 1))
QUICK = not (slow or root or bmv2 or long or lab or cluster or torch or browser)

.PHONY: help run chaos compare doctor stop clean test quick long test-lab test-k8s torch-tests accelerator check explore fuzz soak results docs reference crd picture \
    screenshots header p4 proto shell \
    setup setup-quick setup-dev setup-docs

help: ## this text
	@echo "usage: make TARGET [CONFIG=mine.toml] [ARGS='more arguments']"
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1|/' | awk -F'|' '{ printf "  %-11s %s\n", $$1, $$2 }'

run: setup ## the default experiment, or CONFIG=...; ARGS='--target bmv2' and others: kofn run --help
	@exec .venv/bin/kofn run $(CONFIG) $(ARGS)

chaos: setup ## the training under every kind of fault, on BMv2 as well where it is present; ARGS='loss-10' for some
	@exec .venv/bin/kofn chaos --target embedded --target bmv2 --if-present $(ARGS)

FEW = --only model=1m --only straggler=none --only job.workers=4 --only link=100-mbps,unlimited --seeds 1
compare: setup ## parameter server, ring and the network side by side: minutes; ARGS=--seeds=3 for everything
	@exec .venv/bin/kofn compare $(or $(ARGS),$(FEW))

doctor: setup ## run every check, from root's rights to exact sums, and say what to do about the first that fails
	@exec .venv/bin/kofn doctor $(ARGS)

stop: ## end a run that is going on
	@if [ -x .venv/bin/kofn ]; then exec .venv/bin/kofn stop; else echo "nothing was ever started here"; fi

clean: ## remove what a crashed run left behind, and caches; runs/ is kept
	@if [ -x .venv/bin/kofn ]; then .venv/bin/kofn clean; else echo "no .venv: only caches are removed"; fi
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . \( -name .git -o -name '.venv*' -o -name runs \) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

test: setup-dev ## all tests, or ROOM=switch: those of tests/switch; ARGS='-k wire' for some
	@exec $(PYTEST) $(PROCESSES) --no-loadscope-reorder $(ROOM:%=tests/%) $(ARGS)

quick: setup-quick ## the tests to run before each commit, a minute: no root, no PyTorch, nothing slow; ROOM=switch for some
	@exec $(PYTEST) $$(nproc) -q -m '$(QUICK)' --hypothesis-profile quick $(ROOM:%=tests/%) $(ARGS)

long: setup-dev ## more whole runs than `make test`: other signals, deaths, faults of hosts, sizes
	@exec $(PYTEST) $(PROCESSES) -m long $(ARGS)

test-lab: setup-dev ## laboratories of several machines, as far as `make test` has none: a quarter of an hour
	@exec .venv/bin/python -m pytest tests/lab -m 'lab or not lab' -rs $(ARGS)

test-k8s: setup-dev ## jobs against the API server of KUBECONFIG, which it changes; processes are started here
	@exec .venv/bin/python -m pytest tests/k8s -m cluster -rs $(ARGS)

torch-tests: setup-dev ## PyTorch's own tests of a process group, on the backend "kofn": minutes; which do not apply, and why
	@exec .venv/bin/python -m pytest tests/pytorch/test_of_pytorch.py tests/pytorch/test_rest_of_pytorch.py -m '' -rs -q $(ARGS)

accelerator: setup-dev ## tests and a benchmark on this machine's GPU, under four minutes; says so where there is none
	@KOFN_TEST_DEVICE=auto .venv/bin/python -m pytest tests/pytorch/on_device -m accelerator -rs -q $(ARGS)
	@exec .venv/bin/python -m bench.accelerator

check: setup-dev ## format, lint, types, and the English that a machine can see
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python -m tests.english

explore: setup-dev ## the protocol and random P4 programs by many more steps and interleavings than `make test`: an hour
	@KOFN_NIGHTLY=1 exec .venv/bin/python -m pytest -s --timeout 7200 tests/host/protocol tests/switch/suite/test_random_programs.py $(ARGS)

fuzz: setup-dev ## random frames, messages, programs and calls through switch and engine under sanitizers, FUZZ_S seconds each
	@.venv/bin/python -m tests.host.fuzz --seconds $(FUZZ_S)
	@exec .venv/bin/python -m tests.switch.fuzz --seconds $(FUZZ_S) $(ARGS)

soak: setup-dev ## full load and table updates, every sum checked, SOAK_S seconds
	@exec .venv/bin/python -m bench.soak --seconds $(SOAK_S) $(ARGS)

results: setup-dev ## docs/RESULTS.md from the figures in bench/results; ARGS='goodput' measures one again first
	@exec .venv/bin/python -m bench.results $(ARGS)

docs: setup-docs ## the documentation as a site in site/, every link checked
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet
	@echo 'site/ is built; with its search at http://127.0.0.1:8000: python3 -m http.server --bind 127.0.0.1 --directory site'

reference: setup-dev ## docs/reference/ from the code: configuration, commands, results
	@exec .venv/bin/python -m kofn.cli.reference

crd: setup-dev ## jobs/deploy/base/crd.yaml, the CustomResourceDefinition, from jobs/kofn_jobs/request.py
	@.venv/bin/python -m kofn_jobs.crd | tee jobs/deploy/base/crd.yaml >jobs/deploy/chart/crds/crd.yaml

picture: setup-dev ## docs/picture.svg, the picture of the README
	@exec .venv/bin/python docs/picture.py

screenshots: setup-dev ## docs/images/ of the live page, from the default run; needs root and chromium
	@exec .venv/bin/python -m tests.web.screenshots

header: setup-dev ## rewrite what repeats the header's fields and limits: C header, p4src/sizes.p4, protocol.md's tables
	@.venv/bin/python -m kofn_common.wire.header_text
	@.venv/bin/python -m kofn_common.nativebuild.struct_text

p4: setup-dev ## compile p4src and examples/protocols with p4c (p4c-bm2-ss on the PATH)
	@exec .venv/bin/python -m kofn_controller.p4runtime.p4c p4src/kofn.p4 examples/protocols/*.p4

proto: setup-dev ## regenerate the gRPC stubs in common/kofn_common/rpc/
	@.venv/bin/python -m grpc_tools.protoc -Icommon --python_out=common --grpc_python_out=common --mypy_out=common --mypy_grpc_out=common \
	    --plugin=protoc-gen-mypy=.venv/bin/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=.venv/bin/protoc-gen-mypy_grpc common/kofn_common/rpc/kofn.proto

shell: ## look into the running switch (SWITCH=HOST:PORT) with p4runtime-shell
	@(exec 3<>/dev/tcp/$(subst :,/,$(SWITCH))) 2>/dev/null \
	    || { echo 'kofn: no switch answers at $(SWITCH): `make run` or `kofn run` starts a switch' >&2; exit 3; }
	@kofn/run/setup.sh shell
	@exec .venv-shell/bin/python -m p4runtime_sh --grpc-addr $(SWITCH) --device-id 0 --election-id 0,1 $(ARGS)

setup: ## what `make run` needs, in .venv; the other targets call it, or set up more
	@kofn/run/setup.sh

setup-quick:
	@kofn/run/setup.sh quick

setup-dev:
	@kofn/run/setup.sh dev

setup-docs:
	@kofn/run/setup.sh docs
