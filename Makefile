# Everything a developer or CI does, one target each. `make run` and `make test` are all a newcomer needs.
SHELL   := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BUILD   := build
PROFILE ?= qemu
IMAGE   := $(BUILD)/$(PROFILE)
GOFLAGS := -trimpath -buildvcs=false
export GOFLAGS

# Packages that link Kubernetes take minutes to compile; everything else takes seconds.
HEAVY   := github.com/orlop-os/orlop/orchestrator
LIGHT   := $(shell go list ./... 2>/dev/null | grep -v -e '^$(HEAVY)' -e '/test/integration$$')
# Packages whose tests also run under the product kernel.
KERNEL  := ./machined/disk ./machined/network ./machined/host ./machined/power ./pkg/verity ./pkg/mount ./pkg/watchdog ./pkg/uevent ./pkg/timesync ./pkg/supervise ./orchestrator/podnetwork

.PHONY: help run test check lint unit kernel stories image versions faults reproducible bench lock generate packages tools clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: image ## build the image, boot it in QEMU, bring up a single-machine cluster
	$(BUILD)/bin/orlopctl cluster create --image $(IMAGE)

test: check unit image kernel stories ## everything CI runs

check: packages ## formatting, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt wants to change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	CGO_ENABLED=0 go vet -tags providerless ./...
	CGO_ENABLED=0 go tool -modfile=hack/tools/go.mod staticcheck $(LIGHT) ./test/integration

lint: ## staticcheck of the orchestrator too; slow, because it loads all of Kubernetes
	CGO_ENABLED=0 go tool -modfile=hack/tools/go.mod staticcheck -tags providerless ./...

unit: packages tools ## pure tests and their goldens
	CGO_ENABLED=0 go test -tags providerless $(LIGHT)
	CGO_ENABLED=0 go test -tags providerless $(HEAVY)/...

kernel: image ## the tests of kernel-facing code, under the product kernel in QEMU
	CGO_ENABLED=0 go build -o $(BUILD)/bin/ ./hack/qemu/cmd/qemu
	CGO_ENABLED=0 go test -count=1 -p 1 -exec "$(CURDIR)/$(BUILD)/bin/qemu kernel-test -kernel $(CURDIR)/$(IMAGE)/kernel" $(KERNEL)
	CGO_ENABLED=0 ORLOP_KERNEL=$(CURDIR)/$(IMAGE)/kernel go test -count=1 ./init

stories: versions ## boot the image and tell the stories of test/integration
	CGO_ENABLED=0 go test -count=1 -v -timeout 60m ./test/integration -args -image $(CURDIR)/$(IMAGE) -bin $(CURDIR)/$(BUILD)/bin -operator $(CURDIR)/$(BUILD)/operator -versions $(CURDIR)/$(BUILD)

image: packages tools $(BUILD)/operator/ca.crt $(BUILD)/release/signing.key ## the disk image, UKI, root, manifest and SBOM of PROFILE (default qemu)
	CGO_ENABLED=0 go build -o $(BUILD)/bin/ ./imager
	$(BUILD)/bin/imager -profile profiles/$(PROFILE).yaml -out $(IMAGE)

tools: ## orlopctl, into build/bin
	CGO_ENABLED=0 go build -ldflags '-s -w' -o $(BUILD)/bin/ ./orlopctl

$(BUILD)/operator/ca.crt: | tools
	$(BUILD)/bin/orlopctl gen operator --out $(BUILD)/operator

$(BUILD)/release/signing.key:
	CGO_ENABLED=0 go run ./imager keys -out $(BUILD)/release

versions: image ## other versions of the image as upgrade bundles, for the stories
	$(BUILD)/bin/imager -profile profiles/$(PROFILE).yaml -out $(BUILD)/next -version 99.0.0 -outputs orlop.bundle -bin ''
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(BUILD)/bin/ ./test/integration/broken/exits
	$(BUILD)/bin/imager -profile profiles/$(PROFILE).yaml -out $(BUILD)/broken -version 99.1.0 -outputs orlop.bundle -bin '' -program init=$(BUILD)/bin/exits

faults: image ## upgrades to versions that are broken in one way each (half an hour)
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(BUILD)/bin/ ./test/integration/broken/...
	for fault in machined-exits machined-hangs orchestrator-exits containerd-exits; do \
		$(BUILD)/bin/imager -profile profiles/$(PROFILE).yaml -out $(BUILD)/faults/$$fault -version 99.1.0 -outputs orlop.bundle -bin '' -program $${fault%-*}=$(BUILD)/bin/$${fault#*-}; \
	done
	CGO_ENABLED=0 go test -count=1 -v -timeout 90m ./test/integration -args -stories testdata/faults -image $(CURDIR)/$(IMAGE) -bin $(CURDIR)/$(BUILD)/bin -operator $(CURDIR)/$(BUILD)/operator -versions $(CURDIR)/$(BUILD)

reproducible: packages tools $(BUILD)/operator/ca.crt $(BUILD)/release/signing.key ## build the image twice, once from nothing, in different folders, and compare every byte (ten minutes)
	ORLOP_TEST_REPRODUCIBLE=1 go test ./imager -count=1 -run 'TestReproducible$$' -v -timeout 90m

bench: image ## figures against the same Kubernetes as separate processes; see docs/bench.md
	CGO_ENABLED=0 go run ./test/bench -image $(IMAGE) -out $(BUILD)/bench.json

lock: ## take the newest Debian packages into imager's lock file
	go run ./imager lock

generate: ## regenerate pkg/api from its .proto
	go generate ./pkg/api

packages: ## install the Debian packages that building and testing need
	@hack/packages

clean: ## forget everything that was built
	rm -rf $(BUILD)
