# PyBox. The two targets that matter:
#
#   make demo   from a fresh machine to a program run in a box, with its receipt
#   make test   everything that is checked, end to end in real VMs
#
# 'make help' lists the rest.

ARCH    ?= $(shell go env GOARCH)
VERSION ?= 0.1.0-dev
HOST     = $(shell go env GOOS)
HOSTARCH = $(shell go env GOHOSTARCH)

# Both archives of a build are the same for the same source.
GOBUILD  = go build -trimpath -buildvcs=false
LDHOST   = -s -w -X github.com/pybox/pybox/host/version.Number=$(VERSION)
LDGUEST  = -s -w -X main.version=$(VERSION)

BUNDLE      = .work/bundle-$(ARCH)
TESTBUNDLE  = .work/testbundle-$(ARCH)
STAGE       = scripts/stage

# What starts virtual machines: without cgo on Linux, and on macOS with it and with
# a signature ('scripts/sign', which does nothing elsewhere).
CGOHOST     = 0
# GUESTKERNEL=own compiles the guest's kernel, debian takes Debian's ready-made one.
GUESTKERNEL = own
# BUNDLEFLAGS=--no-bytecode spares the virtual machine that compiles byte code.
BUNDLEFLAGS =
TESTEXEC    =
TESTENV     =
ifeq ($(HOST),darwin)
CGOHOST     = 1
GUESTKERNEL = debian
TESTEXEC    = -exec '"$(CURDIR)/scripts/signed"'
# Sockets lie in folders of tests, and the path of one is 103 bytes at most: those
# below the user's own /var/folders/… would be longer.
TESTENV     = TMPDIR=/tmp
ifneq ($(shell sysctl -n kern.hv_support 2>/dev/null),1)
BUNDLEFLAGS = --no-bytecode
endif
endif

# The images of a bundle: 'make bundle IMAGES=stdlib,data' adds numpy, pandas and
# matplotlib.
IMAGES       = stdlib
WITHDATA     = stdlib,data

KERNELDIR    = "$$(cat .work/kernel-$(ARCH).dir)"
KERNEL_own   = --kernel $(KERNELDIR)
KERNEL_debian = --kernel debian
# KERNEL_FRAGMENT=FILES puts requests of your own before those of kernel/config, and
# LOCK=FILE takes another lock file: see docs/vm-image.md.
KERNEL_FRAGMENT =
LOCK         =
LOCKFLAG     = $(if $(LOCK),--lock $(LOCK))
KERNELFLAGS  = $(LOCKFLAG) $(addprefix --fragment ,$(KERNEL_FRAGMENT))
MKBUNDLE     = bin/pybox-guest build $(BUNDLEFLAGS) $(LOCKFLAG) --arch $(ARCH) --agent-version $(VERSION) $(KERNEL_$(GUESTKERNEL))

.PHONY: help
help:
	@echo 'make demo            build all, start the VM, run a first program in a box'
	@echo 'make demo-data       the same with pandas and matplotlib'
	@echo 'make test            all checks and tests (unit, fuzz, end to end)'
	@echo 'make build           bin/pybox'
	@echo 'make kernel          the guest kernel for ARCH=$(ARCH), cached by content'
	@echo 'make bundle          kernel + root + images as a guest bundle for ARCH=$(ARCH)'
	@echo 'make bundle-tar      the same in one file, for pybox setup --from'
	@echo 'make install-bundle  make it the one that PyBox boots'
	@echo 'make relock          newest Debian packages into guest/debian.lock.json, and the bench'\''s peers'
	@echo 'make kernel-compare  what our kernel configuration lacks of its defaults'
	@echo 'make bench           what runs, starts and transfers cost; BENCH=quick half as long'
	@echo 'make bench-page      docs/performance.md of what was measured last'
	@echo 'make bench-check     whether a figure is clearly worse than docs/performance.md says'
	@echo 'make lint unit fuzz e2e   parts of make test'
	@echo 'make soak            a thousand runs by a hundred clients, for long'
	@echo 'make python          a wheel with the Python client and pybox, and an sdist'
	@echo 'make generate        Go code of the wire schema'
	@echo 'make clean           remove bin and .work (the cache stays)'

# Compiling PyBox's own kernel takes some ten minutes, so where that has not been done
# yet the first run is on Debian's ready-made one, unless who runs make asks for ours.
ASKED = $(strip $(KERNEL_FRAGMENT) $(filter-out file,$(origin GUESTKERNEL)))
demo-data: IMAGES = $(WITHDATA)
.PHONY: demo demo-data demo-with-own demo-with-debian demo-data-with-own demo-data-with-debian
demo demo-data: deps tools
	@kernel=$(GUESTKERNEL); code=0; \
	if [ $$kernel = own ] && [ -z "$(ASKED)" ]; then \
		said=$$(bin/mkkernel cached $(ARCH) $(KERNELFLAGS) 2>&1 >/dev/null) || code=$$?; \
		case $$code in 0) ;; 3) kernel=debian ;; *) echo "$$said" >&2; exit $$code ;; esac; fi; \
	$(MAKE) --no-print-directory $@-with-$$kernel GUESTKERNEL=$$kernel IMAGES=$(IMAGES)
demo-with-own demo-with-debian demo-data-with-own demo-data-with-debian: build install-bundle
	@bin/pybox vm stop >/dev/null # one that runs is not what was just built
	@$(MAKE) --no-print-directory $(firstword $(subst -with-, ,$@))-program
	@echo "The VM runs until 'bin/pybox vm stop', or stops by itself when idle."
	@if [ $(patsubst %-with-debian,debian,$@) = debian ] && [ $(HOST) = linux ]; then \
		echo "It runs Debian's ready-made kernel, which is the quickest to have. PyBox's own has no"; \
		echo "modules and no io_uring: 'make install-bundle' compiles it, in some ten minutes, and"; \
		echo "'bin/pybox vm restart' boots it."; fi

# The programs that the demos end with.
.PHONY: demo-program demo-data-program
demo-program:
	@echo
	@echo "\$$ echo 'print(6*7)' | bin/pybox exec -"
	@echo 'print(6*7)' | bin/pybox exec -
	@echo
	@echo "Now try a program of your own: bin/pybox exec FILE.py"
demo-data-program:
	@echo
	@echo "\$$ cat docs/examples/sales.py"
	@cat docs/examples/sales.py
	@echo
	@rm -rf .work/sales
	@echo "\$$ bin/pybox exec --image data --timeout 30 --input docs/examples/sales.csv --output .work/sales docs/examples/sales.py"
	@bin/pybox exec --image data --timeout 30 --input docs/examples/sales.csv --output .work/sales docs/examples/sales.py
	@echo
	@ls .work/sales
	@echo
	@echo "Now try a program of your own: bin/pybox exec --image data FILE.py"

.PHONY: deps kernel-deps
deps:
	@scripts/deps
kernel-deps:
	@scripts/deps kernel

# A pybox without a bundle at hand makes one by itself: the guest's programs for the
# architecture that it is built for are part of it. gzip -n: the same bytes always.
PROGARCH = $(shell go env GOARCH)
PROGDIR  = host/setup/programs/data
.PHONY: programs
programs:
	@$(MAKE) --no-print-directory agent ARCH=$(PROGARCH)
	@for p in pybox-init pybox-agent; do \
		gzip -9 -n -c .work/guest-$(PROGARCH)/$$p > .work/$$p.gz && \
		mv .work/$$p.gz $(PROGDIR)/$$p-$(PROGARCH).gz || exit 1; done
	@find $(PROGDIR) -name '*.gz' ! -name '*-$(PROGARCH).gz' -delete

.PHONY: build
build: programs
	@mkdir -p bin .work
	CGO_ENABLED=$(CGOHOST) $(GOBUILD) -ldflags '$(LDHOST)' -o bin/pybox ./cmd/pybox
	@scripts/sign bin/pybox

# A wheel and an sdist of the distribution pybox-sandbox: see docs/python.md.
.PHONY: python
python: build
	@PYBOX_BINARY=$(CURDIR)/bin/pybox PYBOX_VERSION=$(VERSION) PYTHONDONTWRITEBYTECODE=1 \
		python3 python/backend/pybox_backend.py .work/python

.PHONY: tools
tools:
	@mkdir -p bin .work
	@CGO_ENABLED=$(CGOHOST) $(GOBUILD) -ldflags '$(LDHOST)' -o bin/ ./guest/cmd/pybox-guest ./kernel/cmd/mkkernel
	@scripts/sign bin/pybox-guest

# The path of the built kernel's folder goes into a file: a build takes minutes
# the first time and prints its progress meanwhile.
.PHONY: kernel
kernel: tools kernel-deps
	@bin/mkkernel build $(ARCH) $(KERNELFLAGS) > .work/kernel-$(ARCH).dir
	@echo "kernel $(ARCH): $$(cat .work/kernel-$(ARCH).dir)"

# What stands before a bundle.
.PHONY: kernel-for-own kernel-for-debian
kernel-for-own: kernel
kernel-for-debian: tools deps
	@echo "kernel $(ARCH): Debian's ready-made cloud kernel; none is compiled"

.PHONY: kernel-configure kernel-compare
kernel-configure kernel-compare: tools kernel-deps
	bin/mkkernel $(subst kernel-,,$@) $(ARCH) $(KERNELFLAGS)

# What an update of the source would lose, and that every request for the other
# architecture is honoured too.
.PHONY: kernel-checks
kernel-checks: tools kernel-deps
	@bin/mkkernel configure arm64
	@bin/mkkernel compare amd64
	@bin/mkkernel compare arm64

# The guest's own programs: PID 1 and the agent. Without Intel's RDT, which no box has,
# containerd needs no Prometheus, and the agent and its shim start sooner.
GUESTTAGS   = no_rdt
GUESTBUILD  = CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) $(GOBUILD) -ldflags '$(LDGUEST)' -tags $(GUESTTAGS)
.PHONY: agent
agent:
	@mkdir -p .work/guest-$(ARCH)
	$(GUESTBUILD) -o .work/guest-$(ARCH)/ ./cmd/pybox-init ./cmd/pybox-agent

# A guest of this machine's own architecture compiles the byte code for all.
ifneq ($(ARCH),$(HOSTARCH))
HOSTBUNDLE  = hostbundle
BUNDLEFLAGS += --compile-with .work/bundle-$(HOSTARCH)
endif
.PHONY: hostbundle
hostbundle:
	@$(MAKE) --no-print-directory bundle ARCH=$(HOSTARCH)

.PHONY: bundle
bundle: kernel-for-$(GUESTKERNEL) agent $(HOSTBUNDLE)
	@$(MKBUNDLE) --images $(IMAGES) --init .work/guest-$(ARCH)/pybox-init --agent .work/guest-$(ARCH)/pybox-agent --out $(BUNDLE)

# The bundle in one file, for 'pybox setup --from' on another machine.
.PHONY: bundle-tar
bundle-tar: bundle
	@bin/pybox-guest pack $(BUNDLE) .work/pybox-bundle-$(VERSION)-$(ARCH).tar

.PHONY: install-bundle
install-bundle: bundle
	@bin/pybox-guest install $(BUNDLE)

# The bundle of the tests differs in these two programs alone: they take requests
# that end, stop or alter them.
.PHONY: testbundle
testbundle: kernel-for-$(GUESTKERNEL) $(HOSTBUNDLE)
	@mkdir -p .work/testguest-$(ARCH)
	@$(GUESTBUILD),pyboxtest -o .work/testguest-$(ARCH)/ ./cmd/pybox-init ./cmd/pybox-agent
	@$(MKBUNDLE) --images stdlib --init .work/testguest-$(ARCH)/pybox-init --agent .work/testguest-$(ARCH)/pybox-agent --out $(TESTBUNDLE)

# The same with the image data, for the tests of that: all others copy and verify what
# they boot many times, and this is four times as large.
DATABUNDLE  = .work/databundle-$(ARCH)
.PHONY: databundle
databundle: testbundle
	@$(MKBUNDLE) --images $(WITHDATA) --init .work/testguest-$(ARCH)/pybox-init --agent .work/testguest-$(ARCH)/pybox-agent --out $(DATABUNDLE)

# A guest of the other architecture is tested too, emulated: where its kernel can be
# cross-compiled, which is on amd64.
FOREIGN_linux_amd64 = arm64
FOREIGN      = $(FOREIGN_$(HOST)_$(HOSTARCH))
.PHONY: foreign-kernel foreign-bundle
foreign-kernel:
	@if [ -n "$(FOREIGN)" ]; then $(MAKE) --no-print-directory kernel ARCH=$(FOREIGN); fi
foreign-bundle:
	@if [ -n "$(FOREIGN)" ]; then $(MAKE) --no-print-directory databundle cloudbundle ARCH=$(FOREIGN); fi

# A bundle with Debian's ready-made kernel, and the test programs: what the tests of
# that kernel boot. It takes no compiler of C, and without byte code no virtual
# machine.
CLOUDBUNDLE = .work/cloudbundle-$(ARCH)
.PHONY: cloudbundle
cloudbundle: tools
	@mkdir -p .work/testguest-$(ARCH)
	@$(GUESTBUILD),pyboxtest -o .work/testguest-$(ARCH)/ ./cmd/pybox-init ./cmd/pybox-agent
	@bin/pybox-guest build --no-bytecode --images stdlib --arch $(ARCH) --kernel debian --agent-version $(VERSION) \
		--init .work/testguest-$(ARCH)/pybox-init --agent .work/testguest-$(ARCH)/pybox-agent --out $(CLOUDBUNDLE)

.PHONY: relock
relock: tools
	bin/pybox-guest relock
	go run ./host/bench/peersdisk --relock

.PHONY: generate
generate:
	scripts/generate

# No kernel can be compiled on macOS, and no test there boots other bundles.
TESTKERNELS = kernel foreign-kernel kernel-checks
TESTBUNDLES = testbundle databundle foreign-bundle cloudbundle
ifeq ($(HOST),darwin)
TESTKERNELS = kernel-for-debian
TESTBUNDLES = testbundle
endif

.PHONY: test
test:
	@scripts/deps test
	@mkdir -p .work
	@$(STAGE) lint 900 scripts/lint
	@$(STAGE) unit 900 $(MAKE) --no-print-directory unit
	@$(STAGE) fuzz 720 $(MAKE) --no-print-directory fuzz
	@$(STAGE) kernel 2700 $(MAKE) --no-print-directory $(TESTKERNELS)
	@$(STAGE) bundle 1200 $(MAKE) --no-print-directory $(TESTBUNDLES) build
	@$(STAGE) "end to end" 3000 $(MAKE) --no-print-directory e2e
	@echo "== all passed"

.PHONY: lint
lint:
	@mkdir -p .work
	@scripts/lint

# With the guest's programs in it, as a pybox has them: some tests are about that.
.PHONY: unit
unit: programs
	@$(TESTENV) go test -race ./...

FUZZTIME ?= 2s
.PHONY: fuzz
fuzz:
	@mkdir -p .work
	@scripts/fuzz $(FUZZTIME)

# Three packages at a time, the long ones first: each boots machines, and much of
# their time is waiting for deadlines.
E2E = ./agent ./cmd/pybox ./agent/semantics ./host/mcp ./host/guestrun ./vm/qemu ./agent/engine/enginecheck ./guest/image ./guest/userimage ./guest/cmd/pybox-guest ./host/compile ./kernel/guestcheck ./python ./docs
ifeq ($(HOST),darwin)
# The others start QEMU, or look into Linux from outside.
E2E = ./vm/vz ./python ./docs
endif
# Clients of the Model Context Protocol that are not ours.
MCPCLIENTS = $(if $(filter darwin,$(HOST)),,$$(scripts/mcp-clients))

.PHONY: e2e
e2e:
	@for p in $(E2E); do go test -tags pyboxtest -list E2E $$p | grep -q '^TestE2E' || \
		{ echo "$$p has no end-to-end test: was one renamed?" >&2; exit 1; }; done
	@scripts/vm-possible || exit 0; clients=$(MCPCLIENTS) || exit 1; \
		$(TESTENV) PYBOX_E2E=1 PYBOX_TEST_BUNDLE=$(CURDIR)/$(TESTBUNDLE) PYBOX_TEST_COMMAND=$(CURDIR)/bin/pybox \
		PYBOX_TEST_FOREIGN_BUNDLE=$(if $(FOREIGN),$(CURDIR)/.work/testbundle-$(FOREIGN)) \
		PYBOX_TEST_CLOUD_BUNDLE=$(CURDIR)/$(CLOUDBUNDLE) \
		PYBOX_TEST_DATA_BUNDLE=$(CURDIR)/$(DATABUNDLE) \
		PYBOX_TEST_MCP_CLIENTS="$$clients" \
		PYBOX_TEST_FOREIGN_CLOUD_BUNDLE=$(if $(FOREIGN),$(CURDIR)/.work/cloudbundle-$(FOREIGN)) \
		go test -race -tags pyboxtest -count=1 -p 3 -timeout 45m -run E2E $(TESTEXEC) $(E2EFLAGS) $(E2E)

# A thousand runs by a hundred clients, a hundred requests at once, and a machine that
# stands still for minutes: by hand, before something is called done.
.PHONY: soak
soak: testbundle build
	@scripts/vm-possible || exit 0; \
		PYBOX_SOAK=1 PYBOX_E2E=1 PYBOX_TEST_BUNDLE=$(CURDIR)/$(TESTBUNDLE) PYBOX_TEST_COMMAND=$(CURDIR)/bin/pybox \
		go test -tags pyboxtest -count=1 -timeout 3h -run 'TestE2E(Soak|Queue)$$' -v ./cmd/pybox

# The image data without byte code: what that is worth is measured.
PLAINBUNDLE = .work/plainbundle-$(ARCH)
.PHONY: plainbundle
plainbundle: kernel-for-$(GUESTKERNEL) agent
	@$(MKBUNDLE) --no-bytecode --images data --init .work/guest-$(ARCH)/pybox-init --agent .work/guest-$(ARCH)/pybox-agent --out $(PLAINBUNDLE)

# The container engines that PyBox is compared with, for the bench's guest alone.
PEERSDISK   = .work/peers-$(ARCH).img
.PHONY: peersdisk
peersdisk:
	@mkdir -p .work
	@go run ./host/bench/peersdisk --arch $(ARCH) --out $(PEERSDISK)

# BENCH=quick measures less often, and neither other engines nor the image data.
BENCH       = full
BENCHNEEDS_full  = databundle plainbundle peersdisk
BENCHNEEDS_quick = testbundle
BENCHFLAGS_full  = --data-bundle $(DATABUNDLE) --plain-bundle $(PLAINBUNDLE) --peers-disk $(PEERSDISK)
BENCHFLAGS_quick = --quick
# The commit, with + behind it where the source has been altered since.
COMMIT      = $$(c=$$(git rev-parse --short=12 HEAD 2>/dev/null) && echo $$c$$(git diff --quiet HEAD -- . || echo +))
BENCHRUN    = .work/bench measure --pybox bin/pybox --bundle $(BUNDLE) --test-bundle $(TESTBUNDLE) --commit "$(COMMIT)"

.PHONY: benchtool
benchtool:
	@mkdir -p .work
	@$(GOBUILD) -tags pyboxtest -o .work/bench ./host/bench

# What is missed or fails is told after everything has been measured, and the report
# is made all the same.
.PHONY: bench
bench: build bundle $(BENCHNEEDS_$(BENCH)) benchtool
	@[ -n "$(BENCHFLAGS_$(BENCH))" ] || { echo "BENCH is full or quick, not $(BENCH)" >&2; exit 2; }
	@mkdir -p .work/performance
	@rm -f .work/bench.json
	@code=0; $(BENCHRUN) $(BENCHFLAGS_$(BENCH)) --json .work/bench.json || code=$$?; \
		.work/bench page --json .work/bench.json --dir .work/performance && \
		echo "JSON: .work/bench.json; the page: .work/performance/performance.md" && exit $$code

# docs/performance.md, with its plot and its figures, of what was measured last.
.PHONY: bench-page
bench-page: benchtool
	@.work/bench page --json .work/bench.json --dir docs

# Fails where a ratio is clearly worse than in docs/performance.json.
.PHONY: bench-check
bench-check: build bundle testbundle benchtool
	@rm -f .work/bench-check.json
	@$(BENCHRUN) --quick --json .work/bench-check.json || [ -s .work/bench-check.json ]
	@.work/bench check --json .work/bench-check.json --baseline docs/performance.json

.PHONY: clean
clean:
	rm -rf bin .work $(PROGDIR)/*.gz
