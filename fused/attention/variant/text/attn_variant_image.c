// SPDX-License-Identifier: Apache-2.0
/* attn_variant_image - files of compiled texts, and the cache of such files */
#include "fused/attention/variant/text/attn_variant_image.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fused/attention/variant/text/attn_variant_headers.h"
#include "primitives/base/error.h"

#define MAGIC		"cairn-attn-variant 1 "
#define MOST_BYTES	(64 << 20)	/* of a file */
#define HEX		((size_t)ATTN_VARIANT_HASH - 1)

void attn_variant_image_free(struct attn_variant_image *image)
{
	free(image->text);
	free(image->cubin);
	memset(image, 0, sizeof(*image));
}

int attn_variant_is_image(const void *data, size_t bytes)
{
	return bytes >= strlen(MAGIC) && !memcmp(data, MAGIC, strlen(MAGIC));
}

static void digest(const void *data, size_t bytes, char hex[ATTN_VARIANT_HASH])
{
	SHA2_CTX s;

	SHA256Init(&s);
	SHA256Update(&s, (const uint8_t *)data, bytes);
	SHA256End(&s, hex);
}

int attn_variant_image_read(const void *data, size_t bytes, const char *path,
			    struct attn_variant_image *image)
{
	const char *from = data, *end = memchr(data, '\n', bytes);
	char line[256], hex[ATTN_VARIANT_HASH], headers[ATTN_VARIANT_HASH];
	size_t text, cubin, head;

	memset(image, 0, sizeof(*image));
	if (!attn_variant_is_image(data, bytes) || !end || end - from >= (long)sizeof(line))
		return cairn_error(EINVAL, "%s: not a compiled variant", path);
	head = (size_t)(end - from) + 1;
	snprintf(line, sizeof(line), "%.*s", (int)(end - from), from);
	if (sscanf(line + strlen(MAGIC), "%64s %d %d %zu %zu", headers, &image->dtype, &image->head_dim,
		   &text, &cubin) != 5 || text > MOST_BYTES || cubin > MOST_BYTES ||
	    bytes != head + text + cubin + HEX)
		return cairn_error(EINVAL, "%s: damaged: its length is wrong", path);
	digest(data, bytes - HEX, hex);
	if (memcmp(hex, from + bytes - HEX, HEX))
		return cairn_error(EINVAL, "%s: damaged: its digest is wrong", path);
	attn_variant_hash_headers(hex);
	if (strcmp(hex, headers))
		return cairn_error(EINVAL, "%s: compiled by another version of this program", path);
	image->text = calloc(1, text + 1);
	image->cubin = malloc(cubin ? cubin : 1);
	image->cubin_bytes = cubin;
	if (!image->text || !image->cubin) {
		attn_variant_image_free(image);
		return cairn_error(ENOMEM, "%s: no memory", path);
	}
	memcpy(image->text, from + head, text);
	memcpy(image->cubin, from + head + text, cubin);
	return 0;
}

/* Lays out the file's contents, which the caller frees. */
static char *lay_out(const struct attn_variant_image *image, size_t *bytes)
{
	char headers[ATTN_VARIANT_HASH];
	size_t text = strlen(image->text), most = 256 + text + image->cubin_bytes + HEX + 1, head;
	char *data = malloc(most);

	if (!data)
		return NULL;
	attn_variant_hash_headers(headers);
	head = (size_t)snprintf(data, 256, MAGIC "%s %d %d %zu %zu\n", headers, image->dtype, image->head_dim,
				text, image->cubin_bytes);
	memcpy(data + head, image->text, text);
	memcpy(data + head + text, image->cubin, image->cubin_bytes);
	*bytes = head + text + image->cubin_bytes;
	digest(data, *bytes, data + *bytes);
	*bytes += HEX;
	return data;
}

/* Writes file `name` in directory `dir`, first under another name, and then renames it. */
static int write_file(int dir, const char *name, const char *data, size_t bytes)
{
	char draft[128];
	size_t done = 0;
	int fd, ret = 0;

	snprintf(draft, sizeof(draft), ".draft-%d-%.64s", (int)getpid(), name);
	fd = openat(dir, draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	while (!ret && done < bytes) {
		ssize_t n = write(fd, data + done, bytes - done);

		if (n < 0 && errno != EINTR)
			ret = -errno;
		done += n > 0 ? (size_t)n : 0;
	}
	if (close(fd) && !ret)
		ret = -errno;
	if (!ret && renameat(dir, draft, dir, name))
		ret = -errno;
	if (ret)
		unlinkat(dir, draft, 0);
	return ret;
}

int attn_variant_image_write(const struct attn_variant_image *image, const char *path)
{
	const char *slash = strrchr(path, '/');
	char folder[4096];
	size_t bytes;
	char *data;
	int dir, ret;

	snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
	dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return cairn_error(errno, "%s: %s", path, strerror(errno));
	data = lay_out(image, &bytes);
	ret = data ? write_file(dir, slash ? slash + 1 : path, data, bytes) : -ENOMEM;
	free(data);
	close(dir);
	return ret ? cairn_error(-ret, "%s: %s", path, strerror(-ret)) : 0;
}

/* Sets path to the cache's directory. Returns 0 if no variable names one. */
static int cache_path(char *path, size_t len)
{
	const char *own = getenv("CAIRN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	if (own && own[0])
		return snprintf(path, len, "%s", own) < (int)len;
	if (xdg && xdg[0])
		return snprintf(path, len, "%s/cairn", xdg) < (int)len;
	if (home && home[0])
		return snprintf(path, len, "%s/.cache/cairn", home) < (int)len;
	return 0;
}

/* Opens the cache's directory; makes it and those above it if they are missing. Returns -1 if unusable. */
static int open_cache(void)
{
	char path[4096];
	struct stat st;
	int fd;

	if (!cache_path(path, sizeof(path)))
		return -1;
	for (char *c = path + 1; *c; c++)
		if (*c == '/') {
			*c = 0;
			mkdir(path, 0700);
			*c = '/';
		}
	mkdir(path, 0700);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (!fstat(fd, &st) && st.st_uid == geteuid() && !(st.st_mode & 077))
		return fd;
	close(fd);
	return -1;
}

static void file_name(const char *key, char name[96])
{
	snprintf(name, 96, "attn-%.64s.cubin", key);
}

/* Returns the contents of a file of ours, which the caller frees, or NULL. */
static char *read_file(int dir, const char *name, size_t *bytes)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	char *data;
	ssize_t n;

	*bytes = 0;
	if (fd < 0)
		return NULL;
	data = fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_size > MOST_BYTES ?
	       NULL : malloc((size_t)st.st_size + 1);
	while (data && *bytes < (size_t)st.st_size) {
		n = read(fd, data + *bytes, (size_t)st.st_size - *bytes);
		if (n <= 0)
			break;
		*bytes += (size_t)n;
	}
	close(fd);
	return data;
}

int attn_variant_cache_find(const char *key, struct attn_variant_image *image)
{
	int dir = open_cache(), found = 0;
	char name[96], *data;
	size_t bytes;

	if (dir < 0)
		return 0;
	file_name(key, name);
	data = read_file(dir, name, &bytes);
	if (data && !attn_variant_image_read(data, bytes, name, image))
		found = 1;
	free(data);
	close(dir);
	return found;
}

int attn_variant_cache_put(const char *key, const struct attn_variant_image *image)
{
	int dir = open_cache(), ret;
	char name[96], *data;
	size_t bytes;

	if (dir < 0)
		return -EACCES;
	file_name(key, name);
	data = lay_out(image, &bytes);
	ret = data ? write_file(dir, name, data, bytes) : -ENOMEM;
	free(data);
	close(dir);
	return ret;
}
