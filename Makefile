# SPDX-License-Identifier: Apache-2.0
#
# Cairn: `make check` and `make report` are the two commands; `make help` lists the rest.
#
#   CONFIG_CUDA=      build without CUDA            O=DIR    build elsewhere (build)
#   DEBUG=N           device assertions; a wait of more than 2 N seconds is a hang; spills are no error
#   SAN=1             ASan and UBSan on host code    M=STAGE  check or bench one stage alone
#   SAN=thread        TSan on host code, without OpenMP
#   V=1               show commands

DIRS	:= primitives fused serving rdma conformance
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
# The grammar of HTTP: llhttp's C sources, where Debian's node-llhttp has them.
LLHTTP	?= /usr/share/llhttp
llhttp_flags = -DLLHTTP_STRICT_MODE=1 -isystem $(LLHTTP) -isystem $(LLHTTP)/../include/llhttp -isystem $(LLHTTP)/../include
Q	:= $(if $(V),,@)
say	= $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

CC	?= gcc
cppflags = $(CPPFLAGS) -D_GNU_SOURCE $(llhttp_flags) $(if $(CONFIG_VERBS),-DCONFIG_VERBS) $(if $(CONFIG_NCCL),-DCONFIG_NCCL) $(if $(CONFIG_CUDA),-DCONFIG_CUDA -isystem $(dir $(NVCC))../include) $(if $(DEBUG),-DCAIRN_DEBUG=$(DEBUG))
CFLAGS	?= $(if $(SAN),-O1,-O3) -g
cflags	= $(CFLAGS) -std=gnu11 $(openmp) -ffp-contract=off -fno-math-errno -fvisibility=default -MMD -MP \
	-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unknown-pragmas -Werror
NVFLAGS	= -std=c++17 -O3 -lineinfo -gencode arch=compute_90a,code=sm_90a -MMD -MP -Werror all-warnings \
	$(if $(DEBUG),,-Xptxas -warn-spills$(comma)-warn-lmem-usage) \
	-Xcompiler -fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fno-asynchronous-unwind-tables \
	$(if $(DEBUG),-DCAIRN_DEBUG=$(DEBUG))
# TSan sees neither the barriers of gcc's OpenMP, which is left out, nor fences; gcc warns of those and, where TSan
# is in its way, of things not initialized that are. Arithmetic is of one thread then, and would take a hundred times
# as long if every load were watched: what moves pages is watched, since the disk's thread touches them as well.
racing	:= $(filter thread,$(SAN))
openmp	= $(if $(racing),-fopenmp-simd,-fopenmp)
sanflags = $(if $(SAN),-DCAIRN_SANITIZED -fno-omit-frame-pointer $(if $(racing),-fsanitize=thread -Wno-tsan -Wno-maybe-uninitialized,\
	-fsanitize=address$(comma)undefined -fno-sanitize-recover=undefined))
comma	:= ,
# Host libraries go in statically where they can, so that the program runs where only a driver is.
static	= $(if $(SAN),-l$(1),$(shell p=$$($(CC) -print-file-name=lib$(1).a); [ -f "$$p" ] && echo $$p || echo -l$(1)))
LDLIBS	= $(call static,jansson) $(call static,pcre2-8) $(call static,utf8proc) $(call static,md) \
	$(if $(CONFIG_CUDA),$(CUDA_LIB)) $(if $(racing),,$(call static,gomp)) -ldl -lpthread -lrt -lm

objs	:=
families :=
define read_kbuild
obj-y :=
dev-y :=
family-y :=
include $(1)/Kbuild
objs += $$(addprefix $(O)/$(1)/,$$(obj-y) $$(if $$(CONFIG_CUDA),$$(dev-y:.o=.cu.o)))
families += $$(family-y)
endef
$(foreach d,$(DIRS),$(eval $(call read_kbuild,$(d))))

objs	+= $(patsubst %,$(O)/llhttp/%.o,api http llhttp)

arithmetic := $(filter-out %/kv_move_cpu.o %/kv_append_cpu.o,$(filter $(O)/primitives/%_cpu.o $(O)/fused/%_cpu.o,$(objs)))
$(if $(racing),$(arithmetic): sanflags = -O3)

sources	:= serving/page.html $(sort $(wildcard $(addsuffix /*.[ch],$(DIRS)) $(addsuffix /*.cu,$(DIRS)) $(addsuffix /*.cuh,$(DIRS))))
digest	= $(shell cat $(sources) | sha256sum | cut -c1-16)

# What objects were made with is kept beside them: other settings, and all are made anew.
settings := $(CC) $(cppflags) $(cflags) $(sanflags) $(LDFLAGS) $(if $(CONFIG_CUDA),$(NVCC) $(NVFLAGS)) $(CONFIG_NIC)
made	:= Makefile $(O)/settings
$(O)/settings: FORCE
	@mkdir -p $(@D)
	@echo '$(subst ','\'',$(settings))' | cmp -s - $@ || echo '$(subst ','\'',$(settings))' >$@

## all                the program, build/cairn
all: $(O)/cairn $(O)/example_plugin.so $(O)/old_plugin.so $(O)/bad_plugin.so $(O)/fault_plugin.so $(O)/late_plugin.so $(O)/transport_end $(if $(CONFIG_NIC),$(O)/cairn_nic.so) \
	$(if $(CONFIG_VERBS),$(O)/golden $(O)/nic_semantics $(O)/nic_mutants $(O)/nic_arming $(O)/fhbn_receiver) \
	$(if $(CONFIG_NIC),$(if $(racing),$(O)/cairn_nic_watched.so))

# A package may bring libraries along: lib/ beside the program is looked in first.
$(O)/cairn: $(objs)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $(sanflags) $(openmp) -rdynamic -Wl,-rpath,'$$ORIGIN/lib' -o $@ $(objs) $(LDLIBS)

$(O)/%.o: %.c $(made)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(cppflags) $(cflags) $(sanflags) -c -o $@ $<

$(O)/llhttp/%.o: $(LLHTTP)/%.c $(made)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(cppflags) $(cflags) -w $(sanflags) -c -o $@ $<

$(O)/%.cu.o: %.cu $(made)
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVFLAGS) -MF $(@:.o=.d) -c -o $@ $<

# Rebuilt whenever any source changes: it carries their digest and the list of families.
$(O)/conformance/registry.o: cppflags += '-DCAIRN_FAMILIES=$(foreach f,$(families),F($(f)))' \
	-DCAIRN_SRCDIR='"$(CURDIR)"' -DCAIRN_SOURCE_DIGEST='"$(digest)"'
$(O)/conformance/registry.o: $(sources)

# The built-in page is part of the program.
$(O)/serving/page.o: cppflags += '-DCAIRN_PAGE="serving/page.html"'
$(O)/serving/page.o: serving/page.html

$(O)/%_plugin.so: conformance/%_plugin.c $(made) $(filter %.h,$(sources))
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(cppflags) $(cflags) -fPIC -shared -o $@ $(filter %.c,$^)

$(O)/late_plugin.so: conformance/late_memory.c conformance/late_runtime.c

# The NIC model, to be preloaded under the system's own libibverbs: a library by itself, sanitized by nobody
# since it has to come before all others.
nic_objs := $(patsubst %,$(O)/rdma/nic_%.pic.o,preload uverbs device engine events execute rules adversary report bare)
$(O)/rdma/%.pic.o: rdma/%.c $(made)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(cppflags) $(cflags) -fPIC -c -o $@ $<

$(O)/cairn_nic.so: $(nic_objs)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -o $@ $(nic_objs) -ldl -lpthread

# With TSan in all but its surface, which is called before TSan is there. For programs that are not: how the model and
# a program hand memory over is not known to TSan.
watched_objs := $(patsubst %_preload.watched.o,%_preload.pic.o,$(nic_objs:.pic.o=.watched.o))
$(O)/rdma/%.watched.o: rdma/%.c $(made)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(cppflags) $(cflags) $(sanflags) -fPIC -c -o $@ $<

$(O)/cairn_nic_watched.so: $(watched_objs)
	$(call say,LINK,$@)
	$(Q)$(CC) -fsanitize=thread -shared -o $@ $^ -ldl -lpthread

# Programs over libibverbs; each is run under the model.
$(O)/nic_semantics: rdma/nic_semantics_events.c
$(O)/fhbn_receiver: rdma/fhbn_host.c primitives/error.c
$(O)/nic_semantics $(O)/nic_mutants $(O)/nic_arming $(O)/fhbn_receiver: $(O)/%: rdma/%.c $(wildcard rdma/*.h) $(made)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(cppflags) $(cflags)) -o $@ $(filter %.c,$^) -lmlx5 -libverbs -ldl

# Our bytes against libmlx5's; not sanitized, as it runs with the model preloaded.
golden_sources := rdma/golden.c rdma/wqe_trial.c rdma/wqe_mutants.c
$(O)/golden: $(golden_sources) rdma/wqe.h rdma/wqe_build.h rdma/wqe_trial.h rdma/cqe.h rdma/nic.h $(made)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(cppflags) $(cflags)) -o $@ $(golden_sources) -lmlx5 -libverbs -ldl

# One end of a transport, or both: the conformance cases of rdma/transport.h, run by transport_test.c.
transport_end_objs := $(addprefix $(O)/rdma/transport_,end.o cases.o cases_trouble.o cases_time.o mutants.o \
	$(if $(CONFIG_CUDA),cases_device.o device.cu.o)) $(filter $(O)/rdma/transport%,$(filter-out %_test.o,$(objs))) \
	$(O)/rdma/card.o $(addprefix $(O)/rdma/fhbn_,host.o qp.o bare.o verbs.o $(if $(CONFIG_CUDA),memory.cu.o)) $(O)/primitives/error.o $(if $(CONFIG_CUDA),$(O)/primitives/launch.o)
$(O)/transport_end: $(transport_end_objs)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $(sanflags) -o $@ $^ $(if $(CONFIG_CUDA),$(CUDA_LIB)) -ldl -lpthread -lrt -lm

## setup              installs what is missing, naming it; nothing when all is there
setup:
	$(Q)tools/setup.sh

## check              set-up, build, every test on whatever hardware is here
check: setup
	$(Q)$(MAKE) --no-print-directory all
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
	$(Q)tools/report.sh $(O) $(M)

## check-sanitize     memcheck, racecheck, synccheck, initcheck over a selection (needs a GPU)
check-sanitize: all
	$(Q)$(MAKE) --no-print-directory O=$(O)/debug DEBUG=60 $(O)/debug/cairn
	$(Q)tools/sanitize.sh $(O) $(O)/debug $(M)

# What has threads. A program that libmlx5 or a plug-in is part of is judged by what it does itself; not rdma.fhbn, whose
# posters hand blocks of the ring on by fences and the card, which TSan does not see.
threaded := 'serving.http*' 'serving.serve*' 'serving.bench_serve*' serving.metrics serving.tiers serving.engine_kv \
	serving.engine_queue serving.engine_chaos 'rdma.nic*' 'rdma.transport*' 'rdma.fhbn_*' rdma.golden rdma.card

## check-threads      TSan over all that has threads, without a GPU
check-threads:
	$(Q)$(MAKE) --no-print-directory SAN=thread CONFIG_CUDA= O=$(O)/threads all
	$(Q)TSAN_OPTIONS="$$TSAN_OPTIONS ignore_noninstrumented_modules=1" $(O)/threads/cairn check $(threaded)

# Fuzzers are built by clang with its own sanitizers, from what they need of serving/ alone.
CLANG	?= $(firstword $(foreach c,clang clang-19 clang-16 clang-14,$(shell command -v $(c) 2>/dev/null)))
FUZZ_SECONDS ?= 20
fuzzers	:= request chat_template stop_match tokenizer safetensors http answer config
fuzz_objs := $(patsubst %.c,$(O)/fuzz/%.o,primitives/error.c $(filter-out %_test.c %_golden_test.c,$(wildcard \
	$(addprefix serving/,json.c config*.c model_layout.c api_*.c chat_template*.c stop_match.c safetensors.c tokenizer*.c bpe.c \
	normalize.c pretokenize.c detokenize.c pattern*.c http_parse.c bench_serve_answer.c bench_serve_stats.c)))) \
	$(patsubst %,$(O)/fuzz/llhttp/%.o,api http llhttp)
# clang 14 knows no _Float16 here; __fp16 stores the same
fuzzflags = -std=gnu11 -D_GNU_SOURCE -D_Float16=__fp16 $(llhttp_flags) -g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined

$(O)/fuzz/%.o: %.c $(wildcard serving/*.h primitives/*.h) $(made)
	@mkdir -p $(@D)
	$(call say,CLANG,$<)
	$(Q)$(CLANG) $(fuzzflags) -c -o $@ $<

$(O)/fuzz/llhttp/%.o: $(LLHTTP)/%.c $(made)
	@mkdir -p $(@D)
	$(call say,CLANG,$<)
	$(Q)$(CLANG) $(fuzzflags) -w -c -o $@ $<

$(addprefix $(O)/fuzz/,$(fuzzers)): $(O)/fuzz/%: $(O)/fuzz/serving/fuzz_%.o $(fuzz_objs)
	$(call say,LINK,$@)
	$(Q)$(CLANG) -fsanitize=fuzzer,address,undefined -o $@ $^ -ljansson -lpcre2-8 -lutf8proc -lm

## fuzz               each fuzzer for FUZZ_SECONDS (20); needs clang
ifneq ($(CLANG),)
fuzz: $(addprefix $(O)/fuzz/,$(fuzzers))
	$(Q)tools/fuzz.sh $(O) $(FUZZ_SECONDS) $(fuzzers)
else
fuzz:
	@for f in $(fuzzers); do echo "ok - fuzz $$f # SKIP no clang"; done
endif

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
	@sed -n 's/^## //p; s/^#   \([A-Z]\)/\1/p' Makefile

.PHONY: FORCE all setup check bench report check-sanitize check-threads fuzz soak package clean help
.DELETE_ON_ERROR:
-include $(objs:.o=.d) $(nic_objs:.o=.d) $(watched_objs:.o=.d) $(transport_end_objs:.o=.d)
