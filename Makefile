# Each task of a developer and of CI has a target. A new developer needs only `make run` and
# `make test`.
SHELL   := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BUILD   := build
PROFILE ?= qemu
IMAGE   := $(BUILD)/$(PROFILE)
GOFLAGS := -trimpath -buildvcs=false
export GOFLAGS
# Every build uses the compiler and the standard library of this version. The go command downloads
# it as a module.
GOTOOLCHAIN := $(shell sed -n 's/^toolchain //p' go.mod)
export GOTOOLCHAIN

# Packages below HEAVY link Kubernetes and take minutes to compile. The LIGHT packages take seconds.
HEAVY   := github.com/orlop-os/orlop/orchestrator
LIGHT    = $(or $(shell go list ./... | grep -v -e '^$(HEAVY)' -e '/test/integration$$'),$(error the packages cannot be listed))
# The tests run without go vet, because go vet would read all of Kubernetes again. `make check` runs
# go vet.
TEST    := CGO_ENABLED=0 go test -vet=off
# STORIES runs stories. VERSION builds the bundle of another version of the image; its arguments are
# -out DIR -version V.
PATIENCE = 75m
STORIES  = $(TEST) -count=1 -v -timeout $(PATIENCE) ./test/integration -args -image $(CURDIR)/$(IMAGE) -bin $(CURDIR)/$(BUILD)/bin -operator $(CURDIR)/$(BUILD)/operator -versions $(CURDIR)/$(BUILD)
VERSION  = $(BUILD)/bin/imager -profile profiles/$(PROFILE).yaml -outputs orlop.bundle -bin ''
N        = 200
SOAK     = CGO_ENABLED=0 go run ./test/soak -image $(IMAGE) -versions $(BUILD)
# Packages whose tests also run under the product kernel.
KERNEL  := ./machined/disk ./machined/extensions ./machined/volumes ./machined/install ./machined/network ./machined/host ./machined/lldp ./machined/power ./pkg/verity ./pkg/kernel/mount ./pkg/copytree ./orchestrator/localvolumes/projectquota ./pkg/kernel/watchdog ./machined/uevent ./pkg/kernel/cgroup ./pkg/kernel/kmsg ./machined/logship ./machined/timesync ./pkg/diskprobe ./pkg/supervise ./pkg/kernel/capture ./orchestrator/bgp ./orchestrator/podnetwork ./orchestrator/netpolicy ./orchestrator/l2announcer ./orchestrator/apivip ./orchestrator/localvolumes

# This file lists the packages whose tests ran again because the emulator broke the guest's kernel.
# They are in a file, because go test hides the output of a package that passes.
REPEATS = $(BUILD)/kernel-repeats.txt
# These tests of the KERNEL packages do not use the kernel, and take seconds to minutes under
# emulation. `make kernel` skips them, and `make unit` runs them.
PURE    := ^Test(Simulation|RandomWorlds|LawsOnRandomDisks|Turns|ElectMoves|VirtualLaws|BridgeLaws|Return)$$

.PHONY: help run test check baseline lint unit kernel stories image versions release-previous faults releases fuzz fuzz-heavy soak history cuts reproducible bench bench-cluster conformance lock lock-check outdated generate packages bench-packages tools clean

BUF = CGO_ENABLED=0 go tool -modfile=hack/tools/go.mod buf

help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: image ## build the image, boot it in QEMU and create a cluster of one machine
	$(BUILD)/bin/orlopctl cluster create --image $(IMAGE)

test: check unit image kernel stories cuts ## run everything that CI runs

check: packages ## check formatting, vet, staticcheck, plain English and the description of the API
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt wants to change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	CGO_ENABLED=0 go vet -tags providerless ./...
	CGO_ENABLED=0 go tool -modfile=hack/tools/go.mod staticcheck $(LIGHT) ./test/integration
	go run ./hack/words
	$(BUF) lint pkg/api
	$(BUF) breaking pkg/api --against pkg/api/baseline.binpb

baseline: ## write the description with which `make check` compares the API; a change that breaks clients needs a new one
	$(BUF) build pkg/api --exclude-source-info -o pkg/api/baseline.binpb

lint: ## run staticcheck on all packages with the orchestrator; slow, because it loads all of Kubernetes
	CGO_ENABLED=0 go tool -modfile=hack/tools/go.mod staticcheck -tags providerless ./...

# These are the light packages with the slowest tests. go test gets them first, because it starts
# packages in the order of its arguments.
SLOW     = $(addprefix github.com/orlop-os/orlop/,orlopctl vm apid imager machined/network machined/membership/workerjoin machined/membership \
	machined/credentials vm/kerneltest pkg/slot/esp machined/network/dhcp machined/disk machined/logship/sender)
# More tests run concurrently than there are processors (the default), because the slowest tests
# mostly wait. On two processors, 6 concurrent packages took 74 s and 2 concurrent packages took
# 125 s, with 105 s of processor time in both cases. The heaps of tests are small. A less frequent
# garbage collection therefore costs little memory, and saves up to half of the time
# (machined/logship/sender: 1.0 s instead of 2.4 s).
WAITING  = -p 6 -parallel 8

# FAILURES prints the failures again at the end, because CI often cuts a log in its middle.
FAILURES = 2>&1 | tee $(BUILD)/$@.log || { echo "Failures of make $@ (all output is in $(BUILD)/$@.log):"; \
	grep -v -E '^(ok|\?) ' $(BUILD)/$@.log | grep -E -A 15 '^ *--- FAIL: |^panic: |^fatal error: |^FAIL|^kernel test: ' | tail -n 400; exit 1; }

# These tests are not pure: they use the kernel of this computer, and wait for its timers, or make an
# image from packages of Debian. The second command of the target unit runs them.
IMPURE      = ^TestImage$$|Kernel$$
IMPURE_IN   = ./imager $(addprefix ./,$(sort $(dir $(shell grep -rlE 'func Test[A-Za-z0-9]*Kernel\b' --include=*_test.go apid imager machined orlopctl pkg vm))))

unit: packages tools ## run the tests that need no image, with their golden files
	GOGC=400 $(TEST) -tags providerless $(WAITING) -skip '$(IMPURE)' $(SLOW) $(filter-out $(SLOW),$(LIGHT)) $(FAILURES)
	$(TEST) -tags providerless $(WAITING) -run '$(IMPURE)' $(IMPURE_IN) $(FAILURES)
	$(TEST) -timeout 30m -tags providerless $(HEAVY)/... $(FAILURES)

kernel: image ## run the tests of kernel-facing packages under the product kernel in QEMU
	CGO_ENABLED=0 go build -o $(BUILD)/bin/ ./vm/cmd/qemu
	rm -f $(REPEATS)
	$(TEST) -count=1 -p 1 -timeout 30m -skip '$(PURE)' -exec "$(CURDIR)/$(BUILD)/bin/qemu kernel-test -repeats $(CURDIR)/$(REPEATS) -kernel $(CURDIR)/$(IMAGE)/kernel" $(KERNEL) $(FAILURES)
	@if test -e $(REPEATS); then cat $(REPEATS); fi
	ORLOP_KERNEL=$(CURDIR)/$(IMAGE)/kernel $(TEST) -count=1 ./init ./vm/kerneltest

stories: versions ## boot the image and run the stories of test/integration
	$(STORIES)

image: packages tools $(BUILD)/operator/ca.crt $(BUILD)/release/signing.key ## build the disk image, UKI, root partition, manifest and SBOM of PROFILE (default qemu)
	CGO_ENABLED=0 go build -o $(BUILD)/bin/ ./imager
	$(BUILD)/bin/imager -profile profiles/$(PROFILE).yaml -out $(IMAGE)

tools: ## build orlopctl in build/bin
	CGO_ENABLED=0 go build -ldflags '-s -w' -o $(BUILD)/bin/ ./orlopctl

$(BUILD)/operator/ca.crt: | tools
	$(BUILD)/bin/orlopctl gen operator --out $(BUILD)/operator

$(BUILD)/release/signing.key:
	CGO_ENABLED=0 go run ./imager keys -out $(BUILD)/release

# The certificate of the admin is valid for a day, so it is issued again at each use.
.PHONY: operator
operator: $(BUILD)/operator/ca.crt
	$(BUILD)/bin/orlopctl gen client --operator $(BUILD)/operator --name admin --role admin --force

versions: image operator ## build the other inputs of the stories: bundles of other versions, the media for real machines, an image without an operator CA
	$(VERSION) -out $(BUILD)/next -version 99.0.0
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(BUILD)/bin/ ./test/integration/broken/exits
	$(VERSION) -out $(BUILD)/broken -version 99.1.0 -program init=$(BUILD)/bin/exits
	$(BUILD)/bin/imager -profile profiles/metal.yaml -out $(BUILD)/metal -bin ''
	mkdir -p $(BUILD)/generic
	grep -v -e '^operatorCA' profiles/$(PROFILE).yaml > $(BUILD)/generic/$(PROFILE).yaml
	cp profiles/VERSION $(BUILD)/generic/
	$(BUILD)/bin/imager -profile $(BUILD)/generic/$(PROFILE).yaml -out $(BUILD)/generic -outputs disk.raw -bin ''

# build/previous has the result: disk.raw, orlop.bundle, manifest.json and bin/orlopctl of the
# release. next/orlop.bundle has the same programs with a higher version.
release-previous: packages tools $(BUILD)/operator/ca.crt $(BUILD)/release/signing.key ## build the last release of releases.yaml, once per computer (RELEASE=0.1.0 builds that release)
	go run ./hack/previous -profile $(PROFILE) -link $(BUILD)/previous $(if $(RELEASE),-version $(RELEASE))

# Each entry is a broken version to which `make faults` upgrades, as NAME:PROGRAM=REPLACEMENT.
FAULTS = machined-exits:machined=exits machined-hangs:machined=hangs \
	orchestrator-exits:orchestrator=exits containerd-exits:containerd=exits runc-exits:runc=exits apid-refuses:machined=no-apid kubelet-refuses:orchestrator=no-node apiserver-refuses:orchestrator=no-api \
	data-refused:orchestrator=older
# STAMPED builds an orchestrator that reports another minor version of Kubernetes.
STAMPED = CGO_ENABLED=0 go build -tags providerless -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(1)' -o $(BUILD)/bin/$(2) ./orchestrator

faults: PATIENCE = 210m
faults: versions broken charts extensions secure-boot ## run the long stories: broken versions, lost machines, power cuts at every operation (three and a half hours at most)
	$(STORIES) -stories testdata/faults

releases: PATIENCE = 120m
releases: versions broken release-previous ## run the stories from the last release to this version and back, under writes (two hours at most)
	$(STORIES) -stories testdata/releases

# helm renders a third-party chart. hack/charts/go.mod has helm and the chart. The chart is set to
# start no pods, because the closed network of the stories does not have their image. The module is
# downloaded first, because `go list` prints no directory for a missing module.
.PHONY: charts
charts:
	mkdir -p $(BUILD)/charts
	go -C hack/charts mod download sigs.k8s.io/descheduler
	CGO_ENABLED=0 go -C hack/charts tool helm template site "$$(go -C hack/charts list -m -f '{{.Dir}}' sigs.k8s.io/descheduler)/charts/descheduler" \
		--namespace tools --set suspend=true > $(BUILD)/charts/descheduler.yaml

# The extensions are built for the present version and for the version to which the stories upgrade.
# Both use the same built programs.
EXTENSION = $(BUILD)/bin/imager extension -profile profiles/$(PROFILE).yaml
.PHONY: extensions
extensions: image ## build the extensions in extensions/, for PROFILE
	$(EXTENSION) -f extensions/gvisor/extension.yaml -out $(BUILD)/extensions/gvisor
	$(EXTENSION) -f extensions/gvisor/extension.yaml -out $(BUILD)/extensions/next -version 99.0.0 \
		-program /usr/bin/runsc=$(BUILD)/extensions/gvisor/work/bin/runsc \
		-program /usr/bin/containerd-shim-runsc-v1=$(BUILD)/extensions/gvisor/work/bin/containerd-shim-runsc-v1
	$(EXTENSION) -f extensions/storage/extension.yaml -out $(BUILD)/extensions/storage

# These are the versions for the story secure-boot: an image and its next version with the keys of a
# site, and a version with the keys of another site. The keys are made once.
SECURE = $(BUILD)/secure-boot
.PHONY: secure-boot
secure-boot: image
	for site in site other; do \
		test -e $(SECURE)/keys/$$site/db.key || $(BUILD)/bin/imager secureboot -out $(SECURE)/keys/$$site -name $$site || exit 1; \
		mkdir -p $(SECURE)/$$site; cp profiles/VERSION $(SECURE)/$$site/; \
		cp profiles/$(PROFILE).yaml $(SECURE)/$$site/; \
		printf 'secureBoot: {certificate: %s/db.crt, key: %s/db.key, enroll: %s}\n' $(SECURE)/keys/$$site $(SECURE)/keys/$$site $(SECURE)/keys/$$site >> $(SECURE)/$$site/$(PROFILE).yaml; \
	done
	$(BUILD)/bin/imager -profile $(SECURE)/site/$(PROFILE).yaml -out $(SECURE)/site -outputs disk.raw,orlop.bundle -bin ''
	$(BUILD)/bin/imager -profile $(SECURE)/site/$(PROFILE).yaml -out $(SECURE)/next -version 99.0.0 -outputs orlop.bundle -bin ''
	for person in operator other; do \
		test -e $(SECURE)/keys/$$person.key || age-keygen -o $(SECURE)/keys/$$person.key || exit 1; \
	done
	mkdir -p $(SECURE)/encrypted; cp profiles/VERSION $(SECURE)/encrypted/
	sed "s/^disk:/disk:\n  recipients: [$$(age-keygen -y $(SECURE)/keys/operator.key)]/" $(SECURE)/site/$(PROFILE).yaml > $(SECURE)/encrypted/$(PROFILE).yaml
	$(BUILD)/bin/imager -profile $(SECURE)/encrypted/$(PROFILE).yaml -out $(SECURE)/encrypted -outputs disk.raw,orlop.bundle -bin ''
	$(BUILD)/bin/imager -profile $(SECURE)/other/$(PROFILE).yaml -out $(SECURE)/other -version 99.0.0 -outputs disk.raw,orlop.bundle -bin ''

.PHONY: broken
broken: versions
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(BUILD)/bin/ ./test/integration/broken/...
	$(BUILD)/bin/refuses -pack $(IMAGE)/work/bin/machined apid $(BUILD)/bin/no-apid
	$(BUILD)/bin/refuses -pack $(IMAGE)/work/bin/orchestrator node $(BUILD)/bin/no-node
	$(BUILD)/bin/refuses -pack $(IMAGE)/work/bin/orchestrator api $(BUILD)/bin/no-api
	$(call STAMPED,v1.36.0,older)
	$(call STAMPED,v1.38.0,newer)
	for fault in $(FAULTS); do \
		name=$${fault%%:*}; program=$${fault#*:}; \
		$(VERSION) -out $(BUILD)/faults/$$name -version 99.1.0 -program $${program%=*}=$(BUILD)/bin/$${program#*=}; \
	done
	# The kernel of this version accepts unsigned drivers, such as the driver that hangs.
	mkdir -p $(BUILD)/faults/kernel-hangs
	grep -v -e module.sig_enforce -e lockdown= profiles/$(PROFILE).yaml > $(BUILD)/faults/kernel-hangs/$(PROFILE).yaml
	cp profiles/VERSION $(BUILD)/faults/kernel-hangs/
	$(subst profiles/$(PROFILE).yaml,$(BUILD)/faults/kernel-hangs/$(PROFILE).yaml,$(VERSION)) -out $(BUILD)/faults/kernel-hangs -version 99.1.0 -program init=$(BUILD)/bin/kernel-hangs
	# Versions for the stories turns and fleet. Machines reject them because of their Kubernetes,
	# which is one minor version or four minor versions newer.
	$(VERSION) -out $(BUILD)/faults/newer-kubernetes -version 99.2.0 -kubernetes $$(go list -m -f '{{.Version}}' k8s.io/kubernetes | awk -F. '{print "v1." $$2+1 ".0"}')
	$(VERSION) -out $(BUILD)/faults/far-kubernetes -version 99.3.0 -kubernetes $$(go list -m -f '{{.Version}}' k8s.io/kubernetes | awk -F. '{print "v1." $$2+4 ".0"}')
	$(VERSION) -out $(BUILD)/faults/data-migrated -version 99.1.0 -program orchestrator=$(BUILD)/bin/newer -program runc=$(BUILD)/bin/exits
	# Versions for the story floor. The first version has a higher epoch and requires two signatures of
	# later versions. The second version has two signatures and no higher epoch.
	test -e $(BUILD)/release-second/signing.key || $(BUILD)/bin/imager keys -out $(BUILD)/release-second
	mkdir -p $(BUILD)/faults/floor
	cat $(BUILD)/release/keys.pem $(BUILD)/release-second/keys.pem > $(BUILD)/faults/floor/keys.pem
	sed -e 's|^releaseKeys:.*|releaseKeys: $(BUILD)/faults/floor/keys.pem|' profiles/$(PROFILE).yaml > $(BUILD)/faults/floor/$(PROFILE).yaml
	printf 'signatures: 2\n' >> $(BUILD)/faults/floor/$(PROFILE).yaml
	$(subst profiles/$(PROFILE).yaml,$(BUILD)/faults/floor/$(PROFILE).yaml,$(VERSION)) -out $(BUILD)/faults/floor -version 98.0.0 -epoch 1
	mkdir -p $(BUILD)/faults/two-signatures
	$(BUILD)/bin/imager sign -bundle $(BUILD)/next/orlop.bundle -key $(BUILD)/release-second/signing.key -out $(BUILD)/faults/two-signatures/orlop.bundle
	mkdir -p $(BUILD)/faults/no-nic
	grep -v -e virtio_net -e vmxnet3 profiles/$(PROFILE).yaml > $(BUILD)/faults/no-nic/$(PROFILE).yaml
	cp profiles/VERSION $(BUILD)/faults/no-nic/
	$(subst profiles/$(PROFILE).yaml,$(BUILD)/faults/no-nic/$(PROFILE).yaml,$(VERSION)) -out $(BUILD)/faults/no-nic -version 99.1.0

# These tests fuzz the decoders of bytes from the network, from files and from foreign disks, as
# PACKAGE:TEST.
FUZZ = orchestrator/neighbor:FuzzFrames \
	machined/debug/bootlog:FuzzCrash \
	pkg/artifact:FuzzTexts \
	pkg/bootenv:FuzzGUID \
	pkg/bundle:FuzzOpen \
	pkg/config:FuzzMerge \
	pkg/config:FuzzParse \
	machined/hosts:FuzzRedfishAddress \
	machined/lldp:FuzzDecode \
	machined/network/dhcp:FuzzReply \
	machined/network/dhcp6:FuzzReply \
	machined/network/domains:FuzzParse \
	machined/network/ra:FuzzOption \
	pkg/diskprobe:FuzzAnswer \
	pkg/slot/esp:FuzzCounted \
	pkg/slot/esp:FuzzDirectory \
	pkg/extension:FuzzParts \
	pkg/imagestore/imagesignature:FuzzRead \
	pkg/imagestore:FuzzChoose \
	pkg/imagestore:FuzzRecognised \
	pkg/approval:FuzzParseFile \
	pkg/admission/claim:FuzzParseList \
	pkg/admission/claim:FuzzParseRule \
	pkg/admission/claim:FuzzVerify \
	pkg/admission/inventory:FuzzParseHost \
	pkg/admission/inventory:FuzzServe \
	pkg/admission/joinrequest:FuzzServe \
	pkg/kernel/kmsg:FuzzParse \
	machined/images/mirror:FuzzAsked \
	machined/images/mirror:FuzzContent \
	pkg/service/notify:FuzzRead \
	pkg/admission/pairing:FuzzServe \
	pkg/disk/parttable:FuzzRead \
	pkg/pki:FuzzParseRequest \
	pkg/artifact/registry:FuzzManifest \
	orchestrator/etcd/s3:FuzzRefusal \
	pkg/attest:FuzzEvidence \
	pkg/attest:FuzzLog \
	pkg/secureboot:FuzzAccept \
	pkg/secureboot:FuzzLists \
	pkg/slot:FuzzCompare \
	pkg/slot:FuzzEntry \
	pkg/disk/superblock:FuzzContent \
	machined/resolver:FuzzQuery \
	machined/timesync:FuzzAnswer \
	machined/timesync/nts:FuzzFields \
	machined/timesync/nts:FuzzRecords \
	pkg/bgp:FuzzRead \
	pkg/trust:FuzzMergeMembership \
	pkg/trust:FuzzMerge \
	machined/uevent:FuzzParse \
	machined/wear:FuzzLogs \
	pkg/verity:FuzzParse
# These tests are in packages that link Kubernetes. Their instrumented build takes ten minutes or
# more. `make unit` runs their seeds.
FUZZ_HEAVY = orchestrator/metrics:FuzzParse
# FUZZTIME is the number of inputs for each test. It is not a duration, because the go command can
# report the end of a duration as a failure. -fuzzminimizetime limits the attempts to shorten an
# interesting input, which would otherwise take up to a minute.
FUZZTIME = 20000x

# fuzz is not part of `make test`. Its inputs differ from run to run, so a failure would not belong
# to the tested change. `make unit` runs all seeds.
fuzz: ## feed random input to the decoders of foreign bytes, FUZZTIME times each (20000x; 60s is a minute each)
	mkdir -p $(BUILD)
	began=$$(date +%s); for f in $(FUZZ); do \
		$(TEST) -tags providerless ./$${f%%:*} -run '^$$' -fuzz "^$${f##*:}\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1000x || exit 1; \
	done; \
	echo "{\"decoders_fuzzed\": $(words $(FUZZ)), \"fuzz_seconds\": $$(( $$(date +%s) - began ))}" > $(BUILD)/fuzz.json

fuzz-heavy: FUZZ = $(FUZZ_HEAVY)
fuzz-heavy: fuzz ## the same, and for decoders in packages that link Kubernetes (a quarter of an hour)

soak: versions ## make N power cuts at random instants (200 by default, an hour and a half); see docs/soak.md
	$(SOAK) -n $(N) $(if $(SEED),-seed $(SEED)) $(if $(CLASSES),-classes $(CLASSES)) $(if $(CONTINUE),-continue)

history: image operator ## check the history of the clients of three control-plane machines during N faults (30 by default, some hours); see docs/history.md
	CGO_ENABLED=0 go run ./test/history -image $(IMAGE) $(if $(filter command line,$(origin N)),-n $(N)) $(if $(SEED),-seed $(SEED))

cuts: versions ## make a few of the power cuts of `make soak` (two minutes)
	$(SOAK) -n 4 -whole 0 -classes first-boot,apply,run,kill -out $(BUILD)/cuts.json

reproducible: packages tools $(BUILD)/operator/ca.crt $(BUILD)/release/signing.key ## build the image twice in different directories, once without results of earlier builds, and compare every byte (ten minutes)
	ORLOP_TEST_REPRODUCIBLE=1 go test ./imager -count=1 -run 'TestReproducible$$' -v -timeout 90m

# AGAINST is the directory of a former release in both targets, such as build/previous, which
# `make release-previous` makes.
bench: bench-packages versions ## compare a machine with the same Kubernetes as separate processes, and with a former release by AGAINST=build/previous; see docs/bench.md
	CGO_ENABLED=0 go run ./test/bench -image $(IMAGE) -out $(BUILD)/bench.json $(if $(PAIRS),-pairs $(PAIRS)) $(if $(AGAINST),-against $(AGAINST))

bench-cluster: image operator ## measure whole clusters into the same file (PARTS=create,join,…, all by default; AGAINST=build/previous); see docs/bench.md (at most four hours for each version)
	CGO_ENABLED=0 go run ./test/clusterbench -image $(IMAGE) -out $(BUILD)/bench.json $(if $(PARTS),-only $(PARTS)) $(if $(LOAD),-load $(LOAD)) $(if $(PAIRS),-pairs $(PAIRS)) $(if $(AGAINST),-against $(AGAINST))

conformance: image operator ## run the conformance suite of Kubernetes on two machines (FOCUS=REGEXP SKIP=REGEXP IMAGES=REGEXP CONTINUE=1); see docs/conformance.md (all tests: most of a day)
	CGO_ENABLED=0 go run ./test/conformance -image $(IMAGE) $(if $(FOCUS),-focus '$(FOCUS)') $(if $(SKIP),-skip '$(SKIP)') $(if $(IMAGES),-images '$(IMAGES)') $(if $(CONTINUE),-continue)

lock-check: ## list the packages of imager's lock file that have a newer build, for example with security fixes
	go run ./imager lock -check

# If a security update is missing, the exit status of make is 2, like after every failure. The exit
# status of $(BUILD)/bin/imager outdated is 3.
outdated: packages ## list pinned modules, components and Debian packages that are behind, and missing security updates (exit status 3 of imager outdated; ALL=1 with indirect modules, JSON=1)
	@CGO_ENABLED=0 go build -o $(BUILD)/bin/ ./imager
	@$(BUILD)/bin/imager outdated $(if $(ALL),-all) $(if $(JSON),-json)

lock: ## write the newest Debian packages of the image to imager's lock file
	go run ./imager lock

generate: ## regenerate pkg/api from its .proto, and the kinds of machines from their types
	go generate ./pkg/api ./pkg/machineapi

packages: ## install the Debian packages that builds and tests need
	@hack/packages imager/host-packages.txt

bench-packages: # install the Debian packages that only `make bench` needs
	@hack/packages test/bench/host-packages.txt

clean: ## delete all built files except the keys, which the running machines trust
	find $(BUILD) -mindepth 1 -maxdepth 1 ! -name operator ! -name release ! -name release-second -exec rm -rf {} +
