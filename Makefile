# PyBox. The two targets that matter:
#
#   make demo   from a fresh machine to a running VM (and, on Linux, all it needs)
#   make test   everything that is checked, end to end in real VMs
#
# 'make help' lists the rest.

ARCH    ?= $(shell go env GOARCH)
VERSION ?= 0.1.0-dev
HOST     = $(shell go env GOOS)

# Both archives of a build are the same for the same source.
GOBUILD  = go build -trimpath -buildvcs=false
LDHOST   = -s -w -X github.com/pybox/pybox/host/version.Number=$(VERSION)
LDGUEST  = -s -w -X main.version=$(VERSION)

BUNDLE      = .work/bundle-$(ARCH)
TESTBUNDLE  = .work/testbundle-$(ARCH)
STAGE       = scripts/stage

KERNELDIR   = "$$(cat .work/kernel-$(ARCH).dir)"
MKBUNDLE    = bin/pybox-guest build --arch $(ARCH) --agent-version $(VERSION) \
	--kernel $(KERNELDIR)/kernel --kernel-version "$$(sed -n 's/.*"version": "\(.*\)",/\1/p' $(KERNELDIR)/meta.json)"

.PHONY: help
help:
	@echo 'make demo            build all, start the VM, show its status'
	@echo 'make test            all checks and tests (unit, fuzz, end to end)'
	@echo 'make build           bin/pybox'
	@echo 'make kernel          the guest kernel for ARCH=$(ARCH), cached by content'
	@echo 'make bundle          kernel + root + agent as a guest bundle for ARCH=$(ARCH)'
	@echo 'make install-bundle  make it the one that PyBox boots'
	@echo 'make relock          newest Debian packages into guest/debian.lock.json'
	@echo 'make kernel-compare  what our kernel configuration lacks of its defaults'
	@echo 'make bench           VM start, memory and socket figures, as table and JSON'
	@echo 'make lint unit fuzz e2e   parts of make test'
	@echo 'make generate        Go code of the wire schema'
	@echo 'make clean           remove bin and .work (the cache stays)'

.PHONY: demo
demo: deps build bundle install-bundle
	@echo
	bin/pybox vm restart -v
	@echo
	bin/pybox vm status
	@echo
	@echo "The VM runs until 'bin/pybox vm stop', or stops by itself when idle."

.PHONY: deps
deps:
	@scripts/deps

.PHONY: build
build:
	@mkdir -p bin .work
	CGO_ENABLED=0 $(GOBUILD) -ldflags '$(LDHOST)' -o bin/pybox ./cmd/pybox

.PHONY: tools
tools:
	@mkdir -p bin .work
	@CGO_ENABLED=0 $(GOBUILD) -ldflags '$(LDHOST)' -o bin/ ./guest/cmd/pybox-guest ./kernel/cmd/mkkernel

# The path of the built kernel's folder goes into a file: a build takes minutes
# the first time and prints its progress meanwhile.
.PHONY: kernel
kernel: tools deps
	@bin/mkkernel build $(ARCH) > .work/kernel-$(ARCH).dir
	@echo "kernel $(ARCH): $$(cat .work/kernel-$(ARCH).dir)"

.PHONY: kernel-configure kernel-compare
kernel-configure kernel-compare: tools deps
	bin/mkkernel $(subst kernel-,,$@) $(ARCH)

# What an update of the source would lose, and that every request for the other
# architecture is honoured too.
.PHONY: kernel-checks
kernel-checks: tools deps
	@bin/mkkernel configure arm64
	@bin/mkkernel compare amd64
	@bin/mkkernel compare arm64

.PHONY: agent
agent:
	@mkdir -p .work
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) $(GOBUILD) -ldflags '$(LDGUEST)' -o .work/pybox-agent-$(ARCH) ./cmd/pybox-agent

.PHONY: bundle
bundle: kernel agent
	@$(MKBUNDLE) --agent .work/pybox-agent-$(ARCH) --out $(BUNDLE)

.PHONY: install-bundle
install-bundle: bundle
	@bin/pybox-guest install $(BUNDLE)

# The bundle of the tests differs in its agent alone, which takes requests that
# end or stop it.
.PHONY: testbundle
testbundle: kernel
	@CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) $(GOBUILD) -tags pyboxtest -ldflags '$(LDGUEST)' -o .work/pybox-agent-test-$(ARCH) ./cmd/pybox-agent
	@$(MKBUNDLE) --agent .work/pybox-agent-test-$(ARCH) --out $(TESTBUNDLE)

.PHONY: relock
relock: tools
	bin/pybox-guest relock

.PHONY: generate
generate:
	scripts/generate

.PHONY: test
test:
	@scripts/deps test
	@mkdir -p .work
	@$(STAGE) lint 600 scripts/lint
	@$(STAGE) unit 480 $(MAKE) --no-print-directory unit
	@$(STAGE) fuzz 480 $(MAKE) --no-print-directory fuzz
	@$(STAGE) kernel 1800 $(MAKE) --no-print-directory kernel kernel-checks
	@$(STAGE) bundle 300 $(MAKE) --no-print-directory testbundle build
	@$(STAGE) "end to end" 1500 $(MAKE) --no-print-directory e2e
	@echo "== all passed"

.PHONY: lint
lint:
	@mkdir -p .work
	@scripts/lint

.PHONY: unit
unit:
	@go test -race ./...

FUZZTIME ?= 3s
.PHONY: fuzz
fuzz:
	@mkdir -p .work
	@scripts/fuzz $(FUZZTIME)

# One package after the other: each boots machines, and two cores are two cores.
E2E = ./vm/qemu ./kernel/guestcheck ./agent ./cmd/pybox
.PHONY: e2e
e2e:
	@for p in $(E2E); do go test -tags pyboxtest -list E2E $$p | grep -q '^TestE2E' || \
		{ echo "$$p has no end-to-end test: was one renamed?" >&2; exit 1; }; done
	@PYBOX_E2E=1 PYBOX_TEST_BUNDLE=$(CURDIR)/$(TESTBUNDLE) PYBOX_TEST_COMMAND=$(CURDIR)/bin/pybox \
		go test -race -tags pyboxtest -count=1 -p 1 -timeout 20m -run E2E $(E2EFLAGS) $(E2E)

.PHONY: bench
bench: build bundle
	@go run ./host/bench --bundle $(BUNDLE) --pybox bin/pybox --json .work/bench.json
	@echo "JSON: .work/bench.json"

.PHONY: clean
clean:
	rm -rf bin .work
