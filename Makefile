# SPDX-License-Identifier: Apache-2.0
#
# Cairn: `make check` and `make report` are the two commands; `make help` lists the rest.
#
#   CONFIG_CUDA=      build without CUDA            O=DIR    build elsewhere (build)
#   DEBUG=N           device assertions; a wait of more than 2 N seconds is a hang; spills are no error
#   SAN=1             ASan and UBSan on host code    M=STAGE  check or bench one stage alone
#   SAN=thread        TSan on host code, without OpenMP
#   LINEINFO=1        line numbers in kernels, for profilers and compute-sanitizer: the same code, up to a third longer to compile
#   KERNELS=quick     kernels without optimisation, which no GPU gets to run: `make check` where there is no GPU (full)
#   NOSETUP=1         leave the package manager alone
#   V=1               show commands
#
# Every folder has a Kbuild, which lists the folder's objects and holds the rules of its programs:
#
#   dirs-y     folders below this one            family-y   families of the suite (cairn_X_family)
#   obj-y      objects made of .c                mutant-y   families with mutants: X_mutants.o and cairn_X_mutants
#   dev-y      objects made of .cu, with CUDA    programs   programs and libraries to build besides cairn
#   threaded-y globs of cases that use threads, for check-threads

STAGES	:= primitives fused serving rdma conformance
O	?= build
CUDA	?= $(firstword $(wildcard /usr/local/cuda /usr/local/cuda-[1-9]*) /usr/local/cuda)
NVCC	?= $(firstword $(wildcard $(CUDA)/bin/nvcc))
CONFIG_CUDA ?= $(if $(NVCC),y)
# The kernel's headers of RDMA devices, and those of libibverbs with its mlx5 part.
CONFIG_NIC ?= $(if $(wildcard /usr/include/rdma/mlx5-abi.h),y)
CONFIG_VERBS ?= $(if $(wildcard /usr/include/infiniband/mlx5dv.h),y)
CONFIG_NCCL ?= $(if $(CONFIG_CUDA),$(if $(wildcard $(dir $(NVCC))../include/nccl_device.h),y))
CUDA_LIB := $(firstword $(wildcard $(CUDA)/lib64/libcudart_static.a $(CUDA)/lib/libcudart_static.a \
	$(CUDA)/targets/x86_64-linux/lib/libcudart_static.a))
LLHTTP	?= /usr/share/llhttp
llhttp_flags = -DLLHTTP_STRICT_MODE=1 -isystem $(LLHTTP) -isystem $(LLHTTP)/../include/llhttp -isystem $(LLHTTP)/../include
Q	:= $(if $(V),,@)
say	= $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

CC	?= gcc
cppflags = $(CPPFLAGS) -I. -D_GNU_SOURCE $(llhttp_flags) $(if $(CONFIG_VERBS),-DCONFIG_VERBS) $(if $(CONFIG_NCCL),-DCONFIG_NCCL) $(if $(CONFIG_CUDA),-DCONFIG_CUDA -isystem $(dir $(NVCC))../include) $(if $(DEBUG),-DCAIRN_DEBUG=$(DEBUG))
# -g1: what a backtrace needs; full debugging information takes a quarter of the compile time (CFLAGS='-O0 -g3' for a debugger).
# One set of objects serves the program and the library. In the program the linker turns what -fPIC costs back into direct accesses.
# glibc's math.h declares every function eight times, five of them for types such as _Float32x, which nothing here uses: the name that
# guards the header of these types is set, so that they are left out. That saves a fifth of the time that the headers take.
CFLAGS	?= $(if $(SAN),-O1,-O3) -g1
cflags	= $(CFLAGS) -std=gnu11 -D_BITS_FLOATN_H -fPIC -fno-semantic-interposition $(openmp) -ffp-contract=off -fno-math-errno -fno-trapping-math -fvisibility=default -MMD -MP \
	-Wall -Wextra -Wformat-security -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unknown-pragmas -Werror
# C++17's <cmath>, which nvcc includes, brings the special functions (Bessel and others), a third of the time of a small file:
# the name that guards their header is set, so that it is left out. Kernels call conversions and arithmetic of 16-bit floats by name:
# without their operators and implicit conversions, cuda_fp16.h and cuda_bf16.h take a sixth less of the time of a small file.
NVFLAGS	= -I. -std=c++17 -D_GLIBCXX_BITS_SPECFUN_H $(foreach t,HALF BFLOAT16,-D__CUDA_NO_$(t)_OPERATORS__ -D__CUDA_NO_$(t)_CONVERSIONS__) \
	-D__CUDA_NO_HALF2_OPERATORS__ -D__CUDA_NO_BFLOAT162_OPERATORS__ -O3 $(if $(DEBUG)$(LINEINFO),-lineinfo) -gencode arch=compute_90a,code=sm_90a -MMD -MP -Werror all-warnings \
	$(if $(DEBUG),,-Xptxas -warn-spills$(comma)-warn-lmem-usage) \
	-Xcompiler -fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fno-asynchronous-unwind-tables \
	$(if $(DEBUG),-DCAIRN_DEBUG=$(DEBUG))
# Kernels take three quarters of the time of a build, and a third of that without optimisation. Where they cannot run, all that can be
# checked is that they compile. ptxas then notes each wgmma that it serialises, which is shown only if the file does not compile. With the
# other value only .cu files are compiled again.
KERNELS	?= full
quick	:= $(filter quick,$(KERNELS))
$(if $(filter-out quick full,$(KERNELS)),$(error KERNELS=$(KERNELS): quick or full))
# Older versions of nvcc have no -Ofc.
nvflags	= $(if $(quick),$(filter-out -Xptxas -warn-spills%,$(NVFLAGS)) $(ofc),$(NVFLAGS))
ofc	:= $(if $(quick),$(if $(shell $(NVCC) --help 2>/dev/null | grep -e -Ofc),-Ofc=max))
# TSan does not see the barriers of gcc's OpenMP, so OpenMP is left out; gcc warns about fences, which TSan does not see either,
# and falsely about uninitialized variables. Arithmetic then runs on one thread, and would take a hundred times as long if every
# load were watched, so it is not instrumented; the copies of KV pages are, because the disk tier's thread touches them too, and
# the mailboxes of ranks.
racing	:= $(filter thread,$(SAN))
openmp	= $(if $(racing),-fopenmp-simd,-fopenmp)
sanflags = $(if $(SAN),-DCAIRN_SANITIZED -fno-omit-frame-pointer $(if $(racing),-fsanitize=thread -Wno-tsan -Wno-maybe-uninitialized,\
	-fsanitize=address$(comma)undefined -fno-sanitize-recover=undefined))
comma	:= ,
# Host libraries are linked statically where possible, so that the program runs on a machine with only a driver.
static	= $(if $(SAN),-l$(1),$(shell p=$$($(CC) -print-file-name=lib$(1).a); [ -f "$$p" ] && echo $$p || echo -l$(1)))
LDLIBS	= $(call static,jansson) $(call static,pcre2-8) $(call static,utf8proc) $(call static,md) \
	$(if $(CONFIG_CUDA),$(CUDA_LIB)) $(if $(racing),,$(call static,gomp)) -ldl -lpthread -lrt -lm

# The settings that objects were compiled with are kept next to them: with other settings, all are compiled again.
settings := $(CC) $(cppflags) $(cflags) $(sanflags) $(LDFLAGS) $(if $(CONFIG_CUDA),$(NVCC) $(NVFLAGS)) $(CONFIG_NIC)
made	:= Makefile $(O)/settings

.SECONDEXPANSION:
.DEFAULT_GOAL := all
objs	:=
families :=
mutants	:=
programs :=
threaded :=
kbuilds	:=
folders	:=
define read_kbuild
obj-y :=
dev-y :=
family-y :=
mutant-y :=
threaded-y :=
dirs-y :=
include $(1)/Kbuild
folders += $(1)
kbuilds += $(1)/Kbuild
objs += $$(addprefix $(O)/$(1)/,$$(obj-y) $$(addsuffix _mutants.o,$$(mutant-y)) $$(if $$(CONFIG_CUDA),$$(dev-y:.o=.cu.o)))
families += $$(family-y)
mutants += $$(mutant-y)
threaded += $$(threaded-y)
$$(foreach s,$$(dirs-y),$$(eval $$(call read_kbuild,$(1)/$$(s))))
endef
$(foreach s,$(STAGES),$(eval $(call read_kbuild,$(s))))

# Only arithmetic gains from -O3. The server and the transports compile a sixth faster with -O2; tests compute little themselves,
# and mutants not much more, so that they are compiled with fewer optimisations, in half the time.
ifeq ($(origin CFLAGS),file)
$(filter-out $(O)/serving/model/% $(library_faces),$(filter $(O)/serving/% $(O)/rdma/%,$(objs))): CFLAGS = $(if $(SAN),-O1,-O2) -g1
$(filter %_mutants.o,$(objs)): CFLAGS = -O1 -g1
$(filter %_test.o,$(objs)): CFLAGS = -Og -g1
endif

arithmetic := $(filter-out %/kv_move_cpu.o %/kv_append_cpu.o %/comm_cpu.o %/all_reduce_norm_cpu.o %/decode_step_ranks_cpu.o,$(filter $(O)/primitives/%_cpu.o $(O)/fused/%_cpu.o,$(objs)))
$(if $(racing),$(arithmetic): sanflags = -O3)

sources	:= $(sort $(wildcard $(foreach e,c h cu cuh html css js,$(addsuffix /*.$(e),$(folders)))))
digest	= $(shell cat $(sources) | sha256sum | cut -c1-16)

$(O)/settings: FORCE
	@mkdir -p $(addprefix $(O)/,$(folders))
	@echo '$(subst ','\'',$(settings))' | cmp -s - $@ || echo '$(subst ','\'',$(settings))' >$@
$(O)/kernels: FORCE
	@mkdir -p $(@D)
	@echo $(KERNELS) | cmp -s - $@ || echo $(KERNELS) >$@

## all                the program, build/cairn, and the programs and libraries that its tests use
all: $(O)/cairn $(programs) $(O)/programs

# Their names, for tools/package.sh: the folder may hold other files.
$(O)/programs: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(notdir $(O)/cairn $(programs)) | cmp -s - $@ || printf '%s\n' $(notdir $(O)/cairn $(programs)) >$@

# A package may bring libraries along: lib/ next to the program is searched first. The program exports cairn_offer alone, for the
# plug-ins of its tests, so that no function of ours takes the place of a plug-in's function of that name.
# Kernels take longest to compile, so they come first.
$(O)/cairn: $(filter %.cu.o,$(objs)) $(objs)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $(sanflags) $(openmp) -Wl,--export-dynamic-symbol=cairn_offer -Wl,-rpath,'$$ORIGIN/lib' -o $@ $(objs) $(LDLIBS)

$(O)/%.o: %.c $(made)
	$(call say,CC,$<)
	$(Q)$(CC) $(cppflags) $(cflags) $(sanflags) -c -o $@ $<

$(O)/%.cu.o: %.cu $(made) $(O)/kernels
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(nvflags) -MF $(@:.o=.d) -c -o $@ $< $(if $(quick),>$@.log 2>&1 || { cat $@.log; exit 1; })

## setup              installs what is missing, naming it; nothing when all is there
setup: packages
	$(Q)$(MAKE) --no-print-directory downloads
packages:
	$(Q)$(if $(NOSETUP),:,tools/setup.sh packages)
# What only tests need is downloaded while the compilers run.
downloads:
	$(Q)$(if $(NOSETUP),:,tools/setup.sh downloads)

## peers              what the tables of other libraries call, from PyPI into build/peers (cuDNN 500 MB; FlashInfer: minutes)
peers:
	$(Q)PEERS=$(O)/peers tools/peers.sh

## check              set-up, build, every test on whatever hardware is here
# Without a GPU, kernels are compiled quickly, unless the build folder has them in full already.
check: kernels = $(if $(filter-out file,$(origin KERNELS))$(wildcard /dev/nvidia[0-9]*)$(filter full,$(file <$(O)/kernels)),$(KERNELS),quick)
check: packages
	$(Q)$(MAKE) --no-print-directory downloads all KERNELS=$(kernels)
	$(Q)tools/lint.sh
	$(Q)tools/check.sh $(O) $(M)

## bench              times every stage with its peers; JSON lines to build/bench.jsonl
bench: setup
	$(Q)$(MAKE) --no-print-directory all
	$(Q)rm -f $(O)/bench.jsonl
	$(Q)$(O)/cairn bench --json $(O)/bench.jsonl $(M)

## report             set-up, build, benchmarks, reports/out/index.html
report: setup
	$(Q)$(MAKE) --no-print-directory all
	$(Q)reports/report.sh $(O) $(M)

## check-sanitize     memcheck, racecheck, synccheck, initcheck over a selection (needs a GPU)
check-sanitize: all
	$(Q)$(MAKE) --no-print-directory O=$(O)/debug DEBUG=60 $(O)/debug/cairn
	$(Q)tools/sanitize.sh $(O) $(O)/debug $(M)

## check-threads      TSan over every family that uses threads, without a GPU
check-threads:
	$(Q)$(MAKE) --no-print-directory SAN=thread CONFIG_CUDA= O=$(O)/threads all
	$(Q)TSAN_OPTIONS="$$TSAN_OPTIONS ignore_noninstrumented_modules=1" $(O)/threads/cairn check $(threaded)

## soak               ten minutes of streams, idle and stalled connections, then 20 killed workers (no GPU needed)
soak: all
	$(Q)python3 tools/serve_figures.py $(O) $(O)/soak.jsonl connections kill --impl cpu --seconds 600

## package            a relocatable archive that needs only a driver: build/cairn-VERSION.tar.gz
package: all
	$(Q)tools/package.sh $(O)

## clean              removes the build folder
clean:
	rm -rf $(O)

## help               this list
help:
	@sed -n 's/^## //p; s/^#   \([A-Z]\)/\1/p' Makefile $(kbuilds)

.PHONY: FORCE all setup packages downloads peers check bench report check-sanitize check-threads soak package clean help
.DELETE_ON_ERROR:
-include $(objs:.o=.d)
