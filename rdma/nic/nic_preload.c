// SPDX-License-Identifier: Apache-2.0
/*
 * nic_preload.c - the entry points of the preloaded library: the device file, a sysfs tree, load and unload
 *
 * The device file is a duplicate of the memory file that holds the UAR pages. This file answers calls on it
 * and passes all others to the C library. The sysfs tree is a real one in a temporary directory, created when
 * libibverbs asks for SYSFS_PATH. libibverbs' other way to find devices, netlink, is blocked.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "rdma/nic/nic_model.h"

#define DEVICE		"/dev/infiniband/uverbs0"
#define MAJOR_UVERBS	231
#define MINOR_UVERBS	192
#define FIRST_FD	100		/* above the small numbers that programs assume */
#define MAX_CONTEXTS	64

uint8_t *nic_uar;

static int uar_fd = -1;
static atomic_int device_fds[MAX_CONTEXTS];	/* fd + 1 */
static char root[512], nowhere[] = "/nonexistent";
static pid_t owner;
static atomic_int is_up;

static const char *const tree[][2] = {
	{ "class/infiniband_verbs/abi_version", "6\n" },
	{ "class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n" },
	{ "class/infiniband_verbs/uverbs0/dev", "231:192\n" },
	{ "class/infiniband_verbs/uverbs0/abi_version", "1\n" },
	{ "class/infiniband/mlx5_0/node_type", "1: CA\n" },
	{ "class/infiniband/mlx5_0/node_guid", "0000:0000:0000:0001\n" },
	{ "class/infiniband/mlx5_0/fw_ver", "28.0.0\n" },
	{ "class/infiniband/mlx5_0/device/modalias",
		"pci:v000015B3d00001021sv000015B3sd00000023bc02sc07i00\n" },
	{ "class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n" },
	{ "class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001\n" },
	{ "class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2\n" },
	{ "class/infiniband/mlx5_0/ports/1/gid_attrs/types/1", "RoCE v2\n" },
	{ "class/infiniband/mlx5_0/ports/1/pkeys/0", "0xffff\n" },
};

/* Returns the C library's own function of that name. */
#define REAL(name) ({							\
	static __typeof__(name) *_Atomic real_;				\
	if (!real_)							\
		real_ = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);	\
	real_; })

static int write_file(const char *path, const char *text)
{
	char part[1024];
	const char *p = path;
	FILE *f;

	while ((p = strchr(p + 1, '/'))) {
		snprintf(part, sizeof(part), "%.*s", (int)(p - path), path);
		if (mkdir(part, 0700) < 0 && errno != EEXIST)
			return -errno;
	}
	f = fopen(path, "we");
	if (!f)
		return -errno;
	fputs(text, f);
	return fclose(f) ? -EIO : 0;
}

static int make_tree(void)
{
	const char *tmp = getenv("TMPDIR");
	char path[1024];
	unsigned i;
	int ret = 0;

	snprintf(root, sizeof(root), "%s/cairn_nic.XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(root)) {
		root[0] = 0;
		return -errno;
	}
	for (i = 0; !ret && i < sizeof(tree) / sizeof(tree[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", root, tree[i][0]);
		ret = write_file(path, tree[i][1]);
	}
	return ret;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

/* If the machine has a NIC, a test must not use it: without this sysfs tree there is no device. */
__attribute__((constructor)) static void begin(void)
{
	size_t bytes = (size_t)NIC_NUM_UAR_PAGES * NIC_PAGE;
	void *map;
	int ret;

	owner = getpid();
	nic_report_open();
	ret = nic_adversary_init();
	ret = ret ? ret : nic_open(getenv("CAIRN_NIC_SHARED"));
	if (!ret) {
		uar_fd = memfd_create("cairn_nic", MFD_CLOEXEC);
		if (uar_fd < 0 || ftruncate(uar_fd, (off_t)bytes) < 0)
			ret = -ENOMEM;
	}
	if (!ret) {
		map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, uar_fd, 0);
		nic_uar = map == MAP_FAILED ? NULL : map;
		ret = nic_uar ? 0 : -ENOMEM;
	}
	if (ret)
		nic_report_error(ret);
	is_up = !ret;
}

static void make_tree_once(void)
{
	int ret = is_up ? make_tree() : 0;

	if (ret)
		nic_report_error(ret);
	is_up = is_up && !ret;
}

/*
 * The tree is created when the variable is read, which only libibverbs does, so that a process that merely
 * executes another program (env, nice) leaves nothing behind.
 */
char *getenv(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (name[0] != 'S' || strcmp(name, "SYSFS_PATH"))
		return REAL(getenv)(name);
	pthread_once(&once, make_tree_once);
	return is_up ? root : nowhere;
}

__attribute__((destructor)) static void end(void)
{
	if (getpid() != owner)
		return;			/* a child of fork() */
	nic_engine_stop();
	if (!root[0])
		return;			/* a program that used no NIC, or only a bare one */
	nic_close();
	nic_report_summary();
	nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int is_device(int fd)
{
	int i;

	for (i = 0; fd >= 0 && i < MAX_CONTEXTS; i++)
		if (atomic_load_explicit(&device_fds[i], memory_order_relaxed) == fd + 1)
			return 1;
	return 0;
}

static int open_device(void)
{
	int fd = fcntl(uar_fd, F_DUPFD_CLOEXEC, FIRST_FD), i, free_slot;

	for (i = 0; fd >= 0 && i < MAX_CONTEXTS; i++) {
		free_slot = 0;
		if (atomic_compare_exchange_strong(&device_fds[i], &free_slot, fd + 1))
			return fd;
	}
	if (fd >= 0) {
		REAL(close)(fd);
		errno = EMFILE;
	}
	return -1;
}

#define OPEN(name)							\
int name(const char *path, int flags, ...)				\
{									\
	va_list ap;							\
	mode_t mode;							\
									\
	va_start(ap, flags);						\
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;	\
	va_end(ap);							\
	if (is_up && !strcmp(path, DEVICE))				\
		return open_device();					\
	return REAL(name)(path, flags, mode);				\
}
OPEN(open)
OPEN(open64)

int close(int fd)
{
	int i, slot = fd + 1;

	nic_channel_close(fd);
	for (i = 0; fd >= 0 && i < MAX_CONTEXTS; i++, slot = fd + 1)
		if (atomic_compare_exchange_strong(&device_fds[i], &slot, 0))
			break;
	return REAL(close)(fd);
}

#define STAT(name, type)						\
int name(const char *path, struct type *st)				\
{									\
	if (!is_up || strcmp(path, DEVICE))				\
		return REAL(name)(path, st);				\
	memset(st, 0, sizeof(*st));					\
	st->st_mode = S_IFCHR | 0600;					\
	st->st_rdev = makedev(MAJOR_UVERBS, MINOR_UVERBS);		\
	return 0;							\
}									\
int f##name(int fd, struct type *st)					\
{									\
	return is_device(fd) ? name(DEVICE, st) : REAL(f##name)(fd, st);	\
}
STAT(stat, stat)
STAT(stat64, stat64)

int ioctl(int fd, unsigned long request, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (is_device(fd)) {
		errno = ENOTTY;		/* as an older kernel does: libibverbs then uses write() */
		return -1;
	}
	return REAL(ioctl)(fd, request, arg);
}

/*
 * The mmap offset of a UAR page holds a command in bits 8 and up and the page's number below. Command 0 maps
 * a page by its number alone.
 */
#define MMAP(name, off_type)							\
void *name(void *addr, size_t bytes, int prot, int flags, int fd, off_type offset) \
{										\
	if (is_device(fd) && (bytes != NIC_PAGE || offset < 0 ||		\
			      offset / NIC_PAGE >= NIC_NUM_UAR_PAGES)) {	\
		errno = EINVAL;							\
		return MAP_FAILED;						\
	}									\
	prot |= is_device(fd) ? PROT_READ : 0;					\
	return REAL(name)(addr, bytes, prot, flags, fd, offset);		\
}
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

ssize_t write(int fd, const void *data, size_t bytes)
{
	return is_device(fd) ? nic_command(data, bytes) : REAL(write)(fd, data, bytes);
}

int socket(int domain, int type, int protocol)
{
	if (domain == AF_NETLINK && protocol == NETLINK_RDMA) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return REAL(socket)(domain, type, protocol);
}
