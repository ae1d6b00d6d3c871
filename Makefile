# What the project is built and checked with. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
SERVER  ?=
KERNELS ?=

ROOT    := $(filter 0,$(shell id -u))
SUDO    := $(if $(ROOT),,sudo)

# Before the first tag: a version before all others that packages take for one,
# which a commit alone is not.
VERSION := $(shell git describe --tags --dirty 2>/dev/null || \
	echo "v0.0.0-$$(git rev-list --count HEAD 2>/dev/null || echo 0).g$$(git describe --always --dirty 2>/dev/null || echo unknown)")

# No C is linked, so that the binary and the tests run on any Linux.
export CGO_ENABLED := 0

# The tests of the kernel programs load the machine and measure time: one
# package after the other. What they depend on is more than Go's cache sees.
TESTFLAGS ?= -p 1 -count 1 -timeout 30m

.PHONY: help
help: ## Explain the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/headgate
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/headgate ./cmd/agent

.PHONY: demo
demo: build ## Show the gate at work in network namespaces; SERVER=nginx with a real nginx (root)
	$(SUDO) bin/headgate demo $(if $(SERVER),--server $(SERVER))

.PHONY: test
test: ## Run every test; as root that includes the kernel's part, and installs what is missing
	$(if $(ROOT),bash .ci/deps,@echo "not root: the tests of the kernel programs are skipped")
	$(if $(ROOT),HEADGATE_REQUIRE_ROOT=1) $(GO) test $(TESTFLAGS) ./...
	$(if $(ROOT),HEADGATE_REQUIRE_ROOT=1) $(GO) -C packaging test $(TESTFLAGS) ./...

.PHONY: test-unit
test-unit: ## Run the tests that need neither root nor a kernel
	HEADGATE_SKIP_ROOT=1 $(GO) test ./...

# Each fuzz target for so long; one alone with FUZZ=NAME.
FUZZTIME ?= 30s
FUZZ     ?= .

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s); what it finds is kept under testdata/fuzz (root)
	@for file in $$(grep -lE '^func Fuzz' $$(git ls-files '*_test.go')); do \
		for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9]*).*/\1/p' $$file | grep -E '$(FUZZ)' || true); do \
			echo "== $$(dirname $$file) $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s ./$$(dirname $$file); \
		done; \
	done

# How many connections, and what chance is drawn from: a seed that was printed.
CONNECTIONS ?= 1000000
SEED        ?=

.PHONY: soak-connections
soak-connections: ## Count CONNECTIONS (1000000) of all kinds of ends, and compare with the kernel (root)
	HEADGATE_SOAK_CONNECTIONS=$(CONNECTIONS) HEADGATE_SOAK_SEED=$(SEED) \
		$(GO) test -v -count 1 -timeout 2h -run '^TestSoakConnections$$' ./internal/e2e

DURATION ?= 10m

.PHONY: soak
soak: ## For DURATION (10m), kills, hangs, reloads, floods and more at random under load (root)
	HEADGATE_SOAK=$(DURATION) HEADGATE_SOAK_SEED=$(SEED) \
		$(GO) test -v -count 1 -timeout 24h -run '^TestSoak$$' ./internal/e2e

.PHONY: test-kernels
test-kernels: ## Run the kernel's part on Debian's kernels in emulated machines, one a CPU, each an hour or more; KERNELS=trixie,sid for some
	$(if $(ROOT),bash .ci/deps kernels)
	$(GO) run ./tools/kernels $(if $(KERNELS),-debian $(KERNELS),-table docs/kernels.md)

.PHONY: test-arm64
test-arm64: ## Load and attach everything on an emulated arm64 machine, and keep a limit there
	$(if $(ROOT),bash .ci/deps arm64)
	$(GO) run ./tools/kernels -arch arm64 -debian trixie -package '^(pkg/loader|internal/e2e)$$' \
		-run '^(TestCheck|TestLookupKnowsAV4MappedClient|TestFieldLoopback)$$'

.PHONY: lint
lint: ## Check formatting, go vet, staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) -C packaging vet ./...

.PHONY: generate
generate: ## Compile the BPF programs and write everything else that is generated (clang-14, libbpf-dev)
	$(GO) generate ./...

.PHONY: verify
verify: ## Check that generated files are what their sources make, in any directory
	bash .ci/verify

.PHONY: verifier
verifier: ## Print what each BPF program costs the kernel's verifier, and compare (root)
	HEADGATE_REQUIRE_ROOT=1 $(GO) test -count 1 -v -run TestVerifierCost ./pkg/loader

# One part at a time: make bench-overload BENCHFLAGS='-only nginx'; or -short.
BENCHFLAGS ?=

.PHONY: bench
bench: bench-cost ## Measure what headgate costs, and what a step of each algorithm takes (root)
	$(GO) test -p 1 -run '^$$' -bench . -benchmem ./pkg/...

.PHONY: bench-cost
bench-cost: ## Measure what headgate costs beside nft and HAProxy, in toggled pairs (root)
	$(GO) run ./bench/cost $(BENCHFLAGS)

.PHONY: bench-flashsale
bench-flashsale: ## A sale begins and the database stalls: what is left, with six gates? (root)
	$(GO) run ./bench/flashsale $(BENCHFLAGS)

.PHONY: bench-overload
bench-overload: ## Overload nginx, PostgreSQL and redis, with several limiters in front, in 10 minutes (root)
	$(GO) run ./bench/overload $(BENCHFLAGS)

.PHONY: bench-overload-pool
bench-overload-pool: ## The same with PostgreSQL behind a pool of connections, in 3 minutes (root)
	$(GO) run ./bench/overload -only postgres-pool $(BENCHFLAGS)

.PHONY: bench-exact
bench-exact: ## Measure how well nft, HAProxy and headgate keep a limit (root)
	$(GO) run ./bench/exact $(BENCHFLAGS)

.PHONY: bench-check
bench-check: ## Compare a few ratios with those under bench/results, in most of a minute (root)
	$(GO) run ./bench/overload -check

.PHONY: pictures
pictures: build ## Draw the pictures of the documents anew, of real runs of a quarter of an hour (root)
	$(SUDO) bin/headgate demo -o json > bench/results/demo.json
	$(GO) run ./tools/picture < bench/results/demo.json > docs/img/demo.png
	$(SUDO) $(GO) run ./tools/screenshot > docs/img/top.png
	$(SUDO) $(GO) test -count 1 -timeout 20m -run TestPageUnderLoad ./internal/e2e -pictures $(CURDIR)/docs/img

.PHONY: man
man: build ## Write the manual pages into dist/man
	bin/headgate man dist/man

.PHONY: install
install: build man ## Install under PREFIX (/usr/local); DESTDIR is put before it
	install -D -m 0755 bin/headgate $(DESTDIR)$(PREFIX)/bin/headgate
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/man/man1 dist/man/*.1

.PHONY: package
package: ## Build archives, deb and rpm for amd64 and arm64 into dist/, and their checksums
	packaging/package $(VERSION) dist

.PHONY: image
image: ## Build the image for amd64 and arm64 into dist/, with what is in it (buildah, root)
	packaging/image $(VERSION) dist

.PHONY: test-image
test-image: ## Run the image with no more than the manifests give it (root, buildah, runc)
	HEADGATE_REQUIRE_ROOT=1 $(GO) -C packaging test -count 1 -v -run 'TestContainer|TestKustomize|TestChart' .

.PHONY: release
release: ## Build all of a release: packages, image, manifests, chart, checksums (root)
	packaging/release $(VERSION) dist

.PHONY: testbed-deb
testbed-deb:
	packaging/package $(VERSION) dist $(shell $(GO) env GOARCH)
	cp dist/headgate-$(VERSION:v%=%)-linux-$(shell $(GO) env GOARCH).deb dist/testbed.deb

.PHONY: testbed
testbed: testbed-deb ## Bring up three machines and run the testbed's scenario on them (vagrant)
	vagrant up
	ON_SERVER='vagrant ssh server -c' ON_CLIENT='vagrant ssh client -c' ON_OBSERVER='vagrant ssh observer -c' \
		SERVER=192.168.57.10 testbed/scenario

.PHONY: testbed-qemu
testbed-qemu: testbed-deb ## The same in an emulated machine, with no Vagrant (root; ten to fifteen minutes)
	$(if $(ROOT),bash .ci/deps testbed)
	testbed/qemu dist/testbed.deb

.PHONY: cleanup
cleanup: build ## Take out of this host's kernel everything that headgate left there (root)
	$(SUDO) bin/headgate cleanup

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist
