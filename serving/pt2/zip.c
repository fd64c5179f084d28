// SPDX-License-Identifier: Apache-2.0
/* zip - reads archives of stored files (zip.h) */
#include "serving/pt2/zip.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

#define END_BYTES	22		/* end of the central directory, without its comment */
#define END64_BYTES	56
#define LOCATOR_BYTES	20
#define ENTRY_BYTES	46		/* of the directory, without name, extra field and comment */
#define LOCAL_BYTES	30		/* in front of a file's data, without name and extra field */
#define ENTRY_MAGIC	0x02014b50u
#define LOCAL_MAGIC	0x04034b50u
#define END_MAGIC	0x06054b50u
#define END64_MAGIC	0x06064b50u
#define LOCATOR_MAGIC	0x07064b50u
#define MAX_COMMENT	0xffff
#define NONE16		0xffffu		/* the value is in the zip64 fields */
#define NONE32		0xffffffffu

struct cairn_zip {
	const uint8_t *bytes;
	size_t num_bytes;
	int mapped;
	char *path;
	struct cairn_zip_file *files;	/* by name */
	size_t num_files;
	char *names;
};

struct directory {
	uint64_t at, num_bytes, num_files;
};

static uint64_t le(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	for (int i = bytes; i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

static int bad(const struct cairn_zip *z, const char *what)
{
	return cairn_error(EINVAL, "%s: %s", z->path, what);
}

/* Returns `num` bytes from offset `at`, or NULL if they are not all inside the archive. */
static const uint8_t *span(const struct cairn_zip *z, uint64_t at, uint64_t num)
{
	return at <= z->num_bytes && num <= z->num_bytes - at ? z->bytes + at : NULL;
}

static int find_end64(const struct cairn_zip *z, uint64_t end, struct directory *d)
{
	const uint8_t *locator = end < LOCATOR_BYTES ? NULL : span(z, end - LOCATOR_BYTES, LOCATOR_BYTES), *p;

	if (!locator || le(locator, 4) != LOCATOR_MAGIC)
		return bad(z, "the zip64 end of the directory is missing");
	p = span(z, le(locator + 8, 8), END64_BYTES);
	if (!p || le(p, 4) != END64_MAGIC)
		return bad(z, "the zip64 end of the directory is not where its locator says");
	if (le(p + 16, 4) || le(p + 20, 4))
		return bad(z, "is a part of an archive in several files");
	*d = (struct directory){
		.num_files = le(p + 32, 8), .num_bytes = le(p + 40, 8), .at = le(p + 48, 8),
	};
	return 0;
}

/* The end of the directory is followed by nothing but its comment, whose length it has. */
static int find_directory(const struct cairn_zip *z, struct directory *d)
{
	for (uint64_t comment = 0; comment <= MAX_COMMENT && comment + END_BYTES <= z->num_bytes; comment++) {
		uint64_t end = z->num_bytes - END_BYTES - comment;
		const uint8_t *p = z->bytes + end;

		if (le(p, 4) != END_MAGIC || le(p + 20, 2) != comment)
			continue;
		*d = (struct directory){
			.num_files = le(p + 10, 2), .num_bytes = le(p + 12, 4), .at = le(p + 16, 4),
		};
		if (d->num_files == NONE16 || d->num_bytes == NONE32 || d->at == NONE32)
			return find_end64(z, end, d);
		return le(p + 4, 2) || le(p + 6, 2) ? bad(z, "is a part of an archive in several files") : 0;
	}
	return bad(z, "is no zip archive, or is truncated");
}

/* A member that is all ones in the directory follows in the extra field, in this order. */
static int widen(const struct cairn_zip *z, const uint8_t *extra, uint64_t len, uint64_t *members[3])
{
	for (uint64_t at = 0; at + 4 <= len; at += 4 + le(extra + at + 2, 2)) {
		uint64_t room = le(extra + at + 2, 2), used = 0;

		if (room > len - at - 4)
			break;
		for (int i = 0; le(extra + at, 2) == 1 && i < 3; i++) {
			if (*members[i] != NONE32)
				continue;
			if (used + 8 > room)
				return bad(z, "a zip64 field is too short");
			*members[i] = le(extra + at + 4 + used, 8);
			used += 8;
		}
	}
	return 0;
}

static int named(const struct cairn_zip *z, const char *name, const char *what)
{
	return cairn_error(EINVAL, "%s: %s: %s", z->path, CAIRN_QUOTED(name), what);
}

/* Finds the data behind the local header at `at`; p: the entry of the directory. */
static int find_data(const struct cairn_zip *z, struct cairn_zip_file *f, const uint8_t *p, uint64_t at,
		     uint64_t num_bytes)
{
	const uint8_t *local = span(z, at, LOCAL_BYTES);
	uint64_t name_len = le(p + 28, 2), begin;

	if (!local || le(local, 4) != LOCAL_MAGIC)
		return named(z, f->name, "there is no file where the directory says");
	begin = at + LOCAL_BYTES + le(local + 26, 2) + le(local + 28, 2);
	if (le(local + 26, 2) != name_len || !span(z, at, LOCAL_BYTES + name_len) ||
	    memcmp(local + LOCAL_BYTES, p + ENTRY_BYTES, name_len))
		return named(z, f->name, "has another name in front of its data");
	f->data = span(z, begin, num_bytes);
	if (!f->data)
		return named(z, f->name, "its data are not inside the archive");
	f->num_bytes = (size_t)num_bytes;
	f->crc = (uint32_t)le(p + 16, 4);
	return 0;
}

/* Reads the entry at *at, and moves *at behind it. */
static int read_entry(struct cairn_zip *z, const struct directory *d, uint64_t *at, char **name,
		      struct cairn_zip_file *f)
{
	const uint8_t *p = *at + ENTRY_BYTES <= d->num_bytes ? z->bytes + d->at + *at : NULL;
	uint64_t name_len, extra_len, whole, stored, size, local;
	uint64_t *members[] = { &size, &stored, &local };

	if (!p || le(p, 4) != ENTRY_MAGIC)
		return bad(z, "the directory has fewer files than it says");
	name_len = le(p + 28, 2);
	extra_len = le(p + 30, 2);
	whole = ENTRY_BYTES + name_len + extra_len + le(p + 32, 2);
	if (whole > d->num_bytes - *at)
		return bad(z, "an entry of the directory is truncated");
	f->name = *name;
	memcpy(*name, p + ENTRY_BYTES, name_len);
	(*name)[name_len] = 0;
	if (strlen(*name) != name_len)
		return named(z, f->name, "its name has a NUL inside");
	*name += name_len + 1;
	*at += whole;
	stored = le(p + 20, 4);
	size = le(p + 24, 4);
	local = le(p + 42, 4);
	CAIRN_TRY(widen(z, p + ENTRY_BYTES + name_len, extra_len, members));
	if (le(p + 8, 2) & 1)
		return named(z, f->name, "is encrypted");
	if (le(p + 10, 2) || stored != size)
		return named(z, f->name, "is compressed; PyTorch stores files as they are");
	return find_data(z, f, p, local, size);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct cairn_zip_file *)a)->name, ((const struct cairn_zip_file *)b)->name);
}

static int read_directory(struct cairn_zip *z)
{
	struct directory d = { 0 };
	uint64_t at = 0;
	char *name;

	CAIRN_TRY(find_directory(z, &d));
	if (!span(z, d.at, d.num_bytes) || d.num_files > d.num_bytes / ENTRY_BYTES)
		return bad(z, "the directory is not inside the archive");
	z->num_files = (size_t)d.num_files;
	z->files = calloc(z->num_files + 1, sizeof(*z->files));
	z->names = malloc((size_t)d.num_bytes + 1);	/* a name's NUL takes the place of its entry */
	if (!z->files || !z->names)
		return cairn_error(ENOMEM, "%s: no memory", z->path);
	name = z->names;
	for (size_t i = 0; i < z->num_files; i++)
		CAIRN_TRY(read_entry(z, &d, &at, &name, &z->files[i]));
	qsort(z->files, z->num_files, sizeof(*z->files), by_name);
	for (size_t i = 1; i < z->num_files; i++)
		if (!strcmp(z->files[i].name, z->files[i - 1].name))
			return named(z, z->files[i].name, "is in the archive twice");
	return 0;
}

static int map(struct cairn_zip *z)
{
	int fd = open(z->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), ret = 0;
	struct stat st;
	void *p;

	if (fd < 0)
		return cairn_error(EIO, "%s: cannot be opened: %s", z->path, strerror(errno));
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || !st.st_size) {
		ret = bad(z, "is no file with content");
		goto out;
	}
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED) {
		ret = cairn_error(EIO, "%s: cannot be mapped: %s", z->path, strerror(errno));
		goto out;
	}
	z->bytes = p;
	z->num_bytes = (size_t)st.st_size;
	z->mapped = 1;
out:
	close(fd);
	return ret;
}

static int open_zip(struct cairn_zip **out, const void *bytes, size_t num_bytes, const char *path)
{
	struct cairn_zip *z = calloc(1, sizeof(*z));
	int ret;

	if (!z)
		return cairn_error(ENOMEM, "%s: no memory", path);
	z->bytes = bytes;
	z->num_bytes = num_bytes;
	z->path = strdup(path);
	ret = !z->path ? cairn_error(ENOMEM, "%s: no memory", path) : bytes ? 0 : map(z);
	if (!ret)
		ret = read_directory(z);
	if (ret)
		cairn_zip_close(z);
	else
		*out = z;
	return ret;
}

int cairn_zip_open(struct cairn_zip **out, const char *path)
{
	return open_zip(out, NULL, 0, path);
}

int cairn_zip_open_mem(struct cairn_zip **out, const void *bytes, size_t num_bytes, const char *name)
{
	return open_zip(out, bytes, num_bytes, name);
}

void cairn_zip_close(struct cairn_zip *z)
{
	if (!z)
		return;
	if (z->mapped)
		munmap((void *)(uintptr_t)z->bytes, z->num_bytes);
	free(z->path);
	free(z->files);
	free(z->names);
	free(z);
}

size_t cairn_zip_count(const struct cairn_zip *z)
{
	return z->num_files;
}

const struct cairn_zip_file *cairn_zip_at(const struct cairn_zip *z, size_t i)
{
	return i < z->num_files ? &z->files[i] : NULL;
}

const struct cairn_zip_file *cairn_zip_find(const struct cairn_zip *z, const char *name)
{
	const struct cairn_zip_file key = { .name = name };

	return bsearch(&key, z->files, z->num_files, sizeof(key), by_name);
}

int cairn_zip_verify(const struct cairn_zip *z, const struct cairn_zip_file *f)
{
	const uint8_t *p = f->data;
	uint32_t table[256], crc = ~0u;

	for (uint32_t i = 0; i < 256; i++) {
		table[i] = i;
		for (int k = 0; k < 8; k++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
	}
	for (size_t i = 0; i < f->num_bytes; i++)
		crc = crc >> 8 ^ table[(crc ^ p[i]) & 255];
	return ~crc == f->crc ? 0 : named(z, f->name, "its checksum is wrong");
}
