// SPDX-License-Identifier: Apache-2.0
/* card.c - checks the preconditions of a real card; reads /sys, /proc and /dev and changes nothing */
#include "rdma/card/card.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEMLOCK_BYTES	(64ull << 20)

struct look {
	const struct cairn_card_where *where;
	const char *root, *name;
	void (*line)(enum cairn_card_state state, const char *what, const char *text, void *arg);
	void *arg;
	int missing;
};

__attribute__((format(printf, 4, 5)))
static void say(struct look *l, enum cairn_card_state state, const char *what, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	l->missing += state == CAIRN_CARD_MISSING;
	l->line(state, what, text, l->arg);
}

#define THERE(what, ...)	say(l, CAIRN_CARD_THERE, what, __VA_ARGS__)
#define MISSING(what, ...)	say(l, CAIRN_CARD_MISSING, what, __VA_ARGS__)

/* Returns a path below the root; a leading % stands for the device's own directory. */
static const char *path_of(const struct look *l, char *path, size_t len, const char *below)
{
	if (below[0] == '%')
		snprintf(path, len, "%s/sys/class/infiniband/%s%s", l->root, l->name, below + 1);
	else
		snprintf(path, len, "%s%s", l->root, below);
	return path;
}

static int exists(const struct look *l, const char *below)
{
	char path[1024];

	return access(path_of(l, path, sizeof(path), below), F_OK) == 0;
}

/* Returns a file's text without its last newline, or an empty text if the file cannot be read. */
static const char *read_file(const struct look *l, const char *below, char *text, size_t len)
{
	char path[1024];
	FILE *f = fopen(path_of(l, path, sizeof(path), below), "re");
	size_t n = f ? fread(text, 1, len - 1, f) : 0;

	if (f)
		fclose(f);
	while (n && isspace((unsigned char)text[n - 1]))
		n--;
	text[n] = 0;
	return text;
}

/* Lists the names in a directory, separated by blanks; returns their number. */
static int list(const struct look *l, const char *below, char *names, size_t len)
{
	char path[1024];
	DIR *dir = opendir(path_of(l, path, sizeof(path), below));
	struct dirent *e;
	size_t used = 0;
	int num = 0;

	names[0] = 0;
	while (dir && (e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		if (used < len)
			used += (size_t)snprintf(names + used, len - used, "%s%s", num ? " " : "", e->d_name);
		num++;
	}
	if (dir)
		closedir(dir);
	return num;
}

static int look_device(struct look *l)
{
	char names[256];
	int num;

	if (exists(l, "%")) {
		THERE("device", "/sys/class/infiniband/%s", l->name);
		return 0;
	}
	num = list(l, "/sys/class/infiniband", names, sizeof(names));
	if (num)
		MISSING("device", "no RDMA device '%s'; this machine has %s", l->name, names);
	else
		MISSING("device", "no RDMA device '%s'; this machine has none", l->name);
	return -ENODEV;
}

static void look_driver(struct look *l)
{
	char text[1024], *driver;

	read_file(l, "%/device/uevent", text, sizeof(text));
	driver = strstr(text, "DRIVER=");
	if (driver)
		driver[strcspn(driver, "\n")] = 0;
	if (driver && !strcmp(driver, "DRIVER=mlx5_core"))
		THERE("driver", "mlx5_core");
	else
		MISSING("driver", "%s is driven by %s, not by mlx5_core: other cards lay out their queues in "
			"another way", l->name, driver ? driver + 7 : "something without a name");
}

static void look_port(struct look *l)
{
	char state[64], layer[64];

	read_file(l, "%/ports/1/state", state, sizeof(state));
	read_file(l, "%/ports/1/link_layer", layer, sizeof(layer));
	if (strstr(state, "ACTIVE"))
		THERE("port", "port 1 is %s, %s", state, layer[0] ? layer : "link layer unknown");
	else
		MISSING("port", "port 1 is %s, not ACTIVE: cable, switch, or ip link set up",
			state[0] ? state : "not there");
}

static void look_uverbs(struct look *l)
{
	char names[256], below[320], path[1024];

	if (!list(l, "%/device/infiniband_verbs", names, sizeof(names))) {
		MISSING("uverbs", "%s has no uverbs: modprobe ib_uverbs", l->name);
		return;
	}
	names[strcspn(names, " ")] = 0;
	snprintf(below, sizeof(below), "/dev/infiniband/%s", names);
	if (access(path_of(l, path, sizeof(path), below), R_OK | W_OK))
		MISSING("uverbs", "%s: %s%s", below, strerror(errno),
			errno == EACCES ? ": the user needs its group, or chmod 0666" : "");
	else
		THERE("uverbs", "%s", below);
}

static void look_libraries(struct look *l)
{
	static const char *const names[2] = { "libibverbs.so.1", "libmlx5.so.1" };
	static const char *const packages[2] = { "libibverbs1", "ibverbs-providers" };
	int i, bad = 0;

	for (i = 0; i < 2; i++) {
		const char *name = l->where->libraries[i] ? l->where->libraries[i] : names[i];
		void *so = dlopen(name, RTLD_LAZY | RTLD_LOCAL);

		if (!so)
			MISSING("libraries", "%s cannot be loaded (package %s)", name, packages[i]);
		bad |= !so;	/* a library that was found stays loaded, because the tests use it */
	}
	if (!bad)
		THERE("libraries", "%s, %s", names[0], names[1]);
}

static void look_memlock(struct look *l)
{
	uint64_t bytes = l->where->memlock_bytes;
	struct rlimit limit;

	if (!bytes)
		bytes = geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &limit) ? UINT64_MAX : limit.rlim_cur;
	if (bytes >= MEMLOCK_BYTES)
		THERE("memlock", "%s", geteuid() ? "the limit is high enough" : "not limited");
	else
		MISSING("memlock", "%llu KiB may be locked, %llu are needed: ulimit -l unlimited",
			(unsigned long long)bytes >> 10, MEMLOCK_BYTES >> 10);
}

static void look_gpu(struct look *l)
{
	char names[1024];

	if (list(l, "/proc/driver/nvidia/gpus", names, sizeof(names)))
		THERE("gpu", "%s", names);
	else
		MISSING("gpu", "no GPU in /proc/driver/nvidia/gpus");
}

static void look_peer(struct look *l)
{
	if (exists(l, "/sys/module/nvidia_peermem"))
		THERE("peer", "nvidia_peermem");
	else if (exists(l, "/sys/module/nv_peer_mem"))
		THERE("peer", "nv_peer_mem");
	else
		MISSING("peer", "nvidia_peermem is not loaded: modprobe nvidia_peermem (GPU memory is "
			"registered by ibv_reg_mr; dma-buf is not used)");
}

static void look_register(struct look *l)
{
	char text[8192];

	read_file(l, "/proc/driver/nvidia/params", text, sizeof(text));
	if (strstr(text, "PeerMappingOverride=1"))
		THERE("register", "PeerMappingOverride=1");
	else
		MISSING("register", "/proc/driver/nvidia/params has no PeerMappingOverride=1: options nvidia "
			"NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d, then "
			"reload the driver");
}

/* Stores the "pciDDDD:BB" root of a device, or an empty text. */
static void root_of(const struct look *l, const char *below, char *root, size_t len)
{
	char path[1024], *real, *at;

	root[0] = 0;
	real = realpath(path_of(l, path, sizeof(path), below), NULL);
	at = real ? strstr(real, "/devices/pci") : NULL;
	if (at)
		snprintf(root, len, "%.*s", (int)strcspn(at + 9, "/"), at + 9);
	free(real);
}

static void look_root(struct look *l)
{
	char names[1024], below[1100], card[64], gpu[64];

	list(l, "/proc/driver/nvidia/gpus", names, sizeof(names));
	names[strcspn(names, " ")] = 0;
	snprintf(below, sizeof(below), "/sys/bus/pci/devices/%s", names);
	root_of(l, "%/device", card, sizeof(card));
	root_of(l, below, gpu, sizeof(gpu));
	if (!names[0] || !card[0] || !gpu[0])
		say(l, CAIRN_CARD_REMARK, "root", "the PCIe roots of card and GPU are unknown");
	else if (!strcmp(card, gpu))
		say(l, CAIRN_CARD_REMARK, "root", "%s and GPU %s share the root %s", l->name, names, card);
	else
		say(l, CAIRN_CARD_REMARK, "root", "%s hangs on %s, GPU %s on %s: stores between them cross "
		    "the CPU", l->name, card, names, gpu);
}

int cairn_card_check(const struct cairn_card_where *where, const char *name,
		     void (*line)(enum cairn_card_state state, const char *what, const char *text, void *arg),
		     void *arg)
{
	const char *root = where->root ? where->root : getenv("CAIRN_CARD_ROOT");
	struct look l = { .where = where, .root = root ? root : "", .name = name, .line = line, .arg = arg };

	if (look_device(&l))
		return l.missing;
	look_driver(&l);
	look_port(&l);
	look_uverbs(&l);
	look_libraries(&l);
	look_memlock(&l);
	look_gpu(&l);
	look_peer(&l);
	look_register(&l);
	look_root(&l);
	return l.missing;
}

int cairn_card_is_name(const char *text)
{
	size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");

	return isalpha((unsigned char)text[0]) && !text[n] && n < 64;
}

const char *cairn_card_device(void)
{
	const char *name = getenv("CAIRN_RDMA_DEVICE");

	return name && *name ? name : NULL;
}

int cairn_card_gid_index(void)
{
	const char *index = getenv("CAIRN_RDMA_GID_INDEX");

	return index && *index ? atoi(index) : 1;
}
