// SPDX-License-Identifier: Apache-2.0
/*
 * card_test.c - the report on machines that are not ready for a real card; if a card is named (cairn check
 * rdma --device NAME), also the semantics test on that card
 *
 * A test machine is a directory with the few files of /sys, /proc and /dev that card.c reads.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "rdma/card/card.h"
#include "rdma/nic/nic_child.h"

#define CARD	"/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0"
#define GPU	"/sys/devices/pci0000:16/0000:16:05.0/0000:1b:00.0"
#define FAR_GPU	"/sys/devices/pci0000:98/0000:98:01.0/0000:9b:00.0"

/* Creates a file of the test machine, or a directory if text is NULL, and its parent directories. */
static void put(struct cairn_test *t, const char *root, const char *below, const char *text)
{
	char path[1024], part[1024];
	FILE *f;

	snprintf(path, sizeof(path), "%s%s", root, below);
	for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
		snprintf(part, sizeof(part), "%.*s", (int)(p - path), path);
		mkdir(part, 0700);
	}
	if (!text) {
		EXPECT(t, mkdir(path, 0700) == 0 || errno == EEXIST);
		return;
	}
	f = fopen(path, "we");
	if (EXPECT(t, f)) {
		fputs(text, f);
		fclose(f);
	}
}

static void link_to(struct cairn_test *t, const char *root, const char *below, const char *target)
{
	char path[1024], to[1024];

	snprintf(path, sizeof(path), "%s%s", root, below);
	snprintf(to, sizeof(to), "%s%s", root, target);
	unlink(path);
	put(t, root, below, "");	/* creates the parent directories */
	unlink(path);
	EXPECT(t, symlink(to, path) == 0);
}

/* Creates a machine that meets all preconditions, with mlx5_0 and a GPU below one PCIe root. */
static const char *ready(struct cairn_test *t, char *root, size_t len, const char *gpu)
{
	snprintf(root, len, "%s/machine", cairn_tmpdir(t));
	mkdir(root, 0700);
	put(t, root, CARD "/uevent", "DRIVER=mlx5_core\nPCI_CLASS=20000\n");
	put(t, root, CARD "/infiniband_verbs/uverbs3", NULL);
	put(t, root, "/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
	put(t, root, "/sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n");
	link_to(t, root, "/sys/class/infiniband/mlx5_0/device", CARD);
	put(t, root, "/dev/infiniband/uverbs3", "");
	put(t, root, gpu, NULL);
	link_to(t, root, "/sys/bus/pci/devices/0000:1b:00.0", gpu);
	put(t, root, "/proc/driver/nvidia/gpus/0000:1b:00.0", NULL);
	put(t, root, "/proc/driver/nvidia/params",
	    "EnableMSI: 1\nRegistryDwords: \"PeerMappingOverride=1;\"\n");
	put(t, root, "/sys/module/nvidia_peermem", NULL);
	return root;
}

struct found {
	char text[8192];
	int num[3];
};

static void collect(enum cairn_card_state state, const char *what, const char *text, void *arg)
{
	static const char *const names[] = { "there", "missing", "remark" };
	struct found *f = arg;
	size_t used = strlen(f->text);

	snprintf(f->text + used, sizeof(f->text) - used, "%s %s: %s\n", names[state], what, text);
	f->num[state]++;
}

/* The C library stands in for the two verbs libraries, so that the test passes on machines without them. */
static int look(const char *root, const char *name, uint64_t memlock, const char *library, struct found *f)
{
	struct cairn_card_where where = {
		.root = root, .libraries = { library, "libc.so.6" }, .memlock_bytes = memlock,
	};

	memset(f, 0, sizeof(*f));
	return cairn_card_check(&where, name, collect, f);
}

static void all_there(struct cairn_test *t)
{
	char root[512];
	struct found f;

	ready(t, root, sizeof(root), GPU);
	if (!EXPECT(t, look(root, "mlx5_0", 1u << 30, "libc.so.6", &f) == 0))
		cairn_note(t, "%s", f.text);
	EXPECT(t, f.num[CAIRN_CARD_THERE] == 9 && f.num[CAIRN_CARD_REMARK] == 1);
	EXPECT_CONTAINS(t, f.text, "there port: port 1 is 4: ACTIVE, Ethernet");
	EXPECT_CONTAINS(t, f.text, "remark root: mlx5_0 and GPU 0000:1b:00.0 share the root pci0000:16");
}

/* Breaks one precondition at a time. The report must name only that one and how to fix it. */
static void each_is_named(struct cairn_test *t)
{
	static const struct { const char *file, *text, *says; } rows[] = {
		{ CARD "/uevent", "DRIVER=bnxt_en\n",
		  "missing driver: mlx5_0 is driven by bnxt_en, not by mlx5_core" },
		{ CARD "/uevent", "", "missing driver: mlx5_0 is driven by something without a name" },
		{ "/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n",
		  "missing port: port 1 is 1: DOWN, not ACTIVE" },
		{ "/sys/class/infiniband/mlx5_0/ports/1/state", NULL, "missing port: port 1 is not there" },
		{ "/dev/infiniband/uverbs3", NULL, "missing uverbs: /dev/infiniband/uverbs3: No such file" },
		{ CARD "/infiniband_verbs/uverbs3", NULL, "missing uverbs: mlx5_0 has no uverbs: modprobe" },
		{ "/proc/driver/nvidia/gpus/0000:1b:00.0", NULL, "missing gpu: no GPU in" },
		{ "/sys/module/nvidia_peermem", NULL,
		  "missing peer: nvidia_peermem is not loaded: modprobe" },
		{ "/proc/driver/nvidia/params", "RegistryDwords: \"\"\n",
		  "missing register: /proc/driver/nvidia" },
		{ "/proc/driver/nvidia/params", NULL, "has no PeerMappingOverride=1: options nvidia" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char root[512], path[1024];
		struct found f;

		ready(t, root, sizeof(root), GPU);
		snprintf(path, sizeof(path), "%s%s", root, rows[i].file);
		if (rows[i].text)
			put(t, root, rows[i].file, rows[i].text);
		else
			EXPECT(t, remove(path) == 0);
		if (!EXPECT(t, look(root, "mlx5_0", 1u << 30, "libc.so.6", &f) == 1))
			cairn_note(t, "%s: %s", rows[i].file, f.text);
		EXPECT_CONTAINS(t, f.text, rows[i].says);
	}
}

static void limits_and_libraries(struct cairn_test *t)
{
	char root[512];
	struct found f;

	ready(t, root, sizeof(root), FAR_GPU);
	EXPECT(t, look(root, "mlx5_0", 64 << 10, "libc.so.6", &f) == 1);
	EXPECT_CONTAINS(t, f.text, "missing memlock: 64 KiB may be locked, 65536 are needed: ulimit -l");
	EXPECT_CONTAINS(t, f.text, "remark root: mlx5_0 hangs on pci0000:16, GPU 0000:1b:00.0 on pci0000:98");
	EXPECT(t, look(root, "mlx5_0", 1u << 30, "libnone.so.1", &f) == 1);
	EXPECT_CONTAINS(t, f.text, "missing libraries: libnone.so.1 cannot be loaded (package libibverbs1)");
}

static void unknown_device(struct cairn_test *t)
{
	char root[512];
	struct found f;

	ready(t, root, sizeof(root), GPU);
	EXPECT(t, look(root, "mlx5_7", 0, NULL, &f) == 1);
	EXPECT_CONTAINS(t, f.text, "missing device: no RDMA device 'mlx5_7'; this machine has mlx5_0\n");
	EXPECT(t, f.num[CAIRN_CARD_THERE] + f.num[CAIRN_CARD_REMARK] == 0);
	snprintf(root, sizeof(root), "%s/nothing", cairn_tmpdir(t));
	EXPECT(t, look(root, "mlx5_0", 0, NULL, &f) == 1);
	EXPECT_CONTAINS(t, f.text, "no RDMA device 'mlx5_0'; this machine has none\n");
}

static void names(struct cairn_test *t)
{
	EXPECT(t, cairn_card_is_name("mlx5_0") && cairn_card_is_name("rocep23s0f0"));
	EXPECT(t, !cairn_card_is_name("") && !cairn_card_is_name("0") && !cairn_card_is_name("-1"));
	EXPECT(t, !cairn_card_is_name("../x") && !cairn_card_is_name("a/b") && !cairn_card_is_name("a b"));
}

/* The command line prints a line for each missing precondition, runs nothing, and exits with status 2. */
static void command_line(struct cairn_test *t)
{
	char root[512], path[1024], out[8192];
	int lines = 0;

	ready(t, root, sizeof(root), GPU);
	put(t, root, "/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
	put(t, root, "/proc/driver/nvidia/params", "");
	snprintf(path, sizeof(path), "%s/sys/module/nvidia_peermem", root);
	EXPECT(t, rmdir(path) == 0);
	setenv("CAIRN_CARD_ROOT", root, 1);
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--device", "mlx5_0", "rdma.wqe", NULL }, out,
			      sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "cairn check: --device: mlx5_0: port: port 1 is 1: DOWN");
	EXPECT_CONTAINS(t, out, "cairn check: --device: mlx5_0: peer: nvidia_peermem is not loaded");
	EXPECT_CONTAINS(t, out, "cairn check: --device: mlx5_0: register: ");
	EXPECT_CONTAINS(t, out, "nothing was run\n");
	EXPECT(t, !strstr(out, "TAP version"));
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--device", "mlx5_7", "rdma.wqe", NULL }, out,
			      sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "cairn check: --device: 'mlx5_7' is neither a CUDA device (0 to 1023) nor an "
			"RDMA device of this machine (mlx5_0)\n");
	for (const char *c = out; *c; c++)
		lines += *c == '\n';
	EXPECT(t, lines == 1);
	unsetenv("CAIRN_CARD_ROOT");
}

/*
 * End to end: the machine meets all preconditions, and the named device is the NIC model, preloaded for the
 * whole program. The families must use the device, and the semantics test and the transport cases must pass
 * on it.
 */
static void through_to_the_card(struct cairn_test *t)
{
	char root[512], library[1024], out[8192];

#ifdef CAIRN_SANITIZED
	cairn_skip(t, "a sanitizer must be the first library");
	return;
#endif
	if (missing(t, "nic_semantics") || missing(t, "transport_end"))
		return;
	find_program("cairn_nic.so", library, sizeof(library));
	ready(t, root, sizeof(root), GPU);
	setenv("CAIRN_CARD_ROOT", root, 1);
	setenv("LD_PRELOAD", library, 1);
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--device", "mlx5_0", "--device", "0",
					  "rdma.card.semantics", "rdma.transport_verbs.words",
					  "rdma.transport_fhbn.words", NULL }, out, sizeof(out)) == 0);
	unsetenv("LD_PRELOAD");
	unsetenv("CAIRN_CARD_ROOT");
	EXPECT_CONTAINS(t, out, "# mlx5_0: port: port 1 is 4: ACTIVE, Ethernet\n");
	EXPECT_CONTAINS(t, out, "# mlx5_0: root: ");
	if (!EXPECT(t, strstr(out, "\n3 passed, 0 failed, 0 skipped")))
		cairn_note(t, "%s", out);
}

/* On a real card, with no library preloaded, the answers must equal the model's exactly. */
static void semantics(struct cairn_test *t)
{
	char path[4096], want[16384], out[16384];
	char *argv[] = { "nic_semantics", NULL };
	int status;

	if (!cairn_card_device()) {
		cairn_skip(t, "no card was named (cairn check rdma --device NAME)");
		return;
	}
	status = cairn_spawn_beside("nic_semantics", NULL, argv, out, sizeof(out));
	snprintf(path, sizeof(path), "%s/rdma/nic/nic_semantics.txt", cairn_srcdir());
	text_of(path, want, sizeof(want));
	if (!EXPECT(t, status == 0) || !EXPECT(t, strcmp(out, want) == 0))
		cairn_note(t, "status %d\n%.3500s", status, out);
}

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(all_there), UNIT(each_is_named), UNIT(limits_and_libraries), UNIT(unknown_device), UNIT(names),
	UNIT(command_line), UNIT(through_to_the_card), UNIT(semantics),
};

const struct cairn_family cairn_card_family = {
	.stage = "rdma", .name = "card", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 5,
};
