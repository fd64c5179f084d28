/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors - opens and checks the weights of a checkpoint
 *
 * A checkpoint is a download, so everything in it is untrusted until it has been checked. Sizes are uint64_t
 * until they are known to be inside the file, and every product is checked for overflow. All checks are done
 * when the file is opened, so that users of a tensor need none.
 */
#include "serving/model/checkpoint/safetensors.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/base/json.h"

#define MAX_SHARDS	10000
#define INDEX_NAME	"model.safetensors.index.json"
#define SINGLE_NAME	"model.safetensors"

struct shard {
	char *path;		/* for messages */
	const uint8_t *bytes;
	size_t num_bytes;
	bool mapped;
	json_t *header;		/* owns the names of the tensors */
};

struct cairn_safetensors {
	char *path;
	struct shard *shards;
	size_t num_shards;
	struct cairn_tensor *tensors;	/* sorted by name once opened */
	size_t num_tensors, cap_tensors;
	size_t num_bytes;
};

static const struct {
	const char *name;
	uint8_t bits;
	int8_t dtype;
} dtypes[CAIRN_ST_NUM_DTYPES] = {
	[CAIRN_ST_BOOL] = { "BOOL", 8, -1 }, [CAIRN_ST_F4] = { "F4", 4, -1 },
	[CAIRN_ST_F6_E2M3] = { "F6_E2M3", 6, -1 }, [CAIRN_ST_F6_E3M2] = { "F6_E3M2", 6, -1 },
	[CAIRN_ST_U8] = { "U8", 8, CAIRN_U8 }, [CAIRN_ST_I8] = { "I8", 8, -1 },
	[CAIRN_ST_F8_E5M2] = { "F8_E5M2", 8, -1 }, [CAIRN_ST_F8_E4M3] = { "F8_E4M3", 8, -1 },
	[CAIRN_ST_F8_E8M0] = { "F8_E8M0", 8, -1 }, [CAIRN_ST_I16] = { "I16", 16, -1 },
	[CAIRN_ST_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", 8, -1 },
	[CAIRN_ST_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", 8, -1 },
	[CAIRN_ST_U16] = { "U16", 16, -1 }, [CAIRN_ST_F16] = { "F16", 16, CAIRN_F16 },
	[CAIRN_ST_BF16] = { "BF16", 16, CAIRN_BF16 }, [CAIRN_ST_I32] = { "I32", 32, CAIRN_I32 },
	[CAIRN_ST_U32] = { "U32", 32, -1 }, [CAIRN_ST_F32] = { "F32", 32, CAIRN_F32 },
	[CAIRN_ST_C64] = { "C64", 64, -1 }, [CAIRN_ST_F64] = { "F64", 64, -1 },
	[CAIRN_ST_I64] = { "I64", 64, CAIRN_I64 }, [CAIRN_ST_U64] = { "U64", 64, -1 },
};

const char *cairn_st_dtype_name(enum cairn_st_dtype dtype)
{
	return (unsigned)dtype < CAIRN_ST_NUM_DTYPES ? dtypes[dtype].name : "?";
}

unsigned cairn_st_dtype_bits(enum cairn_st_dtype dtype)
{
	return (unsigned)dtype < CAIRN_ST_NUM_DTYPES ? dtypes[dtype].bits : 0;
}

int cairn_st_to_dtype(enum cairn_st_dtype dtype)
{
	return (unsigned)dtype < CAIRN_ST_NUM_DTYPES ? dtypes[dtype].dtype : -1;
}

/* 'file: tensor "name"', the start of most messages. A macro, so that the compiler checks the formats. */
#define TENSOR_ERROR(file, name, fmt, ...) \
	cairn_error(EINVAL, "%s: tensor %s: " fmt, file, CAIRN_QUOTED(name), ##__VA_ARGS__)

static int parse_shape(const json_t *shape, struct cairn_tensor *t)
{
	uint64_t count = 1, bits;
	size_t i;

	if (json_array_size(shape) > CAIRN_SAFETENSORS_MAX_RANK)
		return TENSOR_ERROR(t->file, t->name,
				    "shape: %zu dimensions, at most %d are supported",
				    json_array_size(shape), CAIRN_SAFETENSORS_MAX_RANK);
	t->rank = (int32_t)json_array_size(shape);
	for (i = 0; i < (size_t)t->rank; i++) {
		const json_t *dim = json_array_get(shape, i);

		if (!json_is_integer(dim) || json_integer_value(dim) < 0)
			return TENSOR_ERROR(t->file, t->name, "shape[%zu]: must be an integer >= 0",
					    i);
		t->shape[i] = json_integer_value(dim);
		if (__builtin_mul_overflow(count, (uint64_t)t->shape[i], &count))
			return TENSOR_ERROR(t->file, t->name, "shape: its product overflows");
	}
	if (__builtin_mul_overflow(count, (uint64_t)dtypes[t->dtype].bits, &bits))
		return TENSOR_ERROR(t->file, t->name, "shape: its size in bits overflows");
	if (bits % 8)
		return TENSOR_ERROR(t->file, t->name, "shape: %llu bits are not whole bytes",
				    (unsigned long long)bits);
	t->num_bytes = bits / 8;
	return 0;
}

static int parse_tensor(const json_t *info, const uint8_t *data, size_t data_bytes,
			struct cairn_tensor *t)
{
	const json_t *shape, *offsets;
	const char *dtype;
	int64_t begin, end;
	int i;

	if (!json_is_object(info))
		return TENSOR_ERROR(t->file, t->name, "must be an object, is %s",
				    cairn_json_type_name(info));
	dtype = json_string_value(json_object_get(info, "dtype"));
	if (!dtype)
		return TENSOR_ERROR(t->file, t->name, "dtype: must be a string, is %s",
				    cairn_json_type_name(json_object_get(info, "dtype")));
	for (i = 0; i < CAIRN_ST_NUM_DTYPES; i++)
		if (!strcmp(dtype, dtypes[i].name))
			break;
	if (i == CAIRN_ST_NUM_DTYPES)
		return TENSOR_ERROR(t->file, t->name, "dtype: unknown type %s",
				    CAIRN_QUOTED(dtype));
	t->dtype = (enum cairn_st_dtype)i;

	shape = json_object_get(info, "shape");
	if (!json_is_array(shape))
		return TENSOR_ERROR(t->file, t->name, "shape: must be an array, is %s",
				    cairn_json_type_name(shape));
	CAIRN_TRY(parse_shape(shape, t));

	offsets = json_object_get(info, "data_offsets");
	if (json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
	    !json_is_integer(json_array_get(offsets, 1)))
		return TENSOR_ERROR(t->file, t->name, "data_offsets: must be two integers");
	begin = json_integer_value(json_array_get(offsets, 0));
	end = json_integer_value(json_array_get(offsets, 1));
	if (begin < 0 || end < begin)
		return TENSOR_ERROR(t->file, t->name, "data_offsets: [%lld, %lld] is not a range",
				    (long long)begin, (long long)end);
	if ((uint64_t)end > data_bytes)
		return TENSOR_ERROR(
			t->file, t->name,
			"data_offsets: [%lld, %lld] ends past the file's %zu bytes of data",
			(long long)begin, (long long)end, data_bytes);
	if ((uint64_t)(end - begin) != t->num_bytes)
		return TENSOR_ERROR(t->file, t->name,
				    "data_offsets: %lld bytes, but dtype and shape make %zu",
				    (long long)(end - begin), t->num_bytes);
	t->data = data + begin;
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct cairn_tensor *x = a, *y = b;
	const uint8_t *px = x->data, *py = y->data;

	if (px != py)
		return px < py ? -1 : 1;
	/* empty tensors come before the tensor that fills their offset */
	return (x->num_bytes > y->num_bytes) - (x->num_bytes < y->num_bytes);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct cairn_tensor *)a)->name,
		      ((const struct cairn_tensor *)b)->name);
}

/* Checks that the n tensors of one file tile its data exactly. */
static int check_tiling(struct cairn_tensor *t, size_t n, const uint8_t *data, size_t data_bytes,
			const char *file)
{
	const uint8_t *next = data;

	qsort(t, n, sizeof(*t), by_offset);
	for (size_t i = 0; i < n; i++) {
		const uint8_t *begin = t[i].data;

		if (begin < next)
			return TENSOR_ERROR(file, t[i].name, "data_offsets: overlaps tensor %s",
					    CAIRN_QUOTED(t[i - 1].name));
		if (begin > next)
			return TENSOR_ERROR(file, t[i].name,
					    "data_offsets: leaves a hole of %zu bytes before it",
					    (size_t)(begin - next));
		next = begin + t[i].num_bytes;
	}
	if (next != data + data_bytes)
		return cairn_error(EINVAL, "%s: the last %zu bytes belong to no tensor", file,
				   (size_t)(data + data_bytes - next));
	return 0;
}

static int check_metadata(json_t *metadata, const char *file)
{
	const char *key;
	json_t *value;

	if (!json_is_object(metadata))
		return cairn_error(EINVAL, "%s: __metadata__: must be an object, is %s", file,
				   cairn_json_type_name(metadata));
	json_object_foreach(metadata, key, value)
		if (!json_is_string(value))
			return cairn_error(EINVAL, "%s: __metadata__: %s must be a string, is %s",
					   file, CAIRN_QUOTED(key), cairn_json_type_name(value));
	return 0;
}

/* Checks one file and appends its tensors to st. */
static int parse_shard(struct cairn_safetensors *st, struct shard *sh)
{
	size_t data_bytes, first = st->num_tensors, want;
	const uint8_t *data;
	uint64_t header = 0;
	const char *name;
	json_t *info;

	if (sh->num_bytes < 8)
		return cairn_error(EINVAL, "%s: header: its size takes 8 bytes, the file has %zu",
				   sh->path, sh->num_bytes);
	for (int i = 7; i >= 0; i--)
		header = header << 8 | sh->bytes[i];
	if (header > CAIRN_SAFETENSORS_MAX_HEADER)
		return cairn_error(EINVAL, "%s: header: %llu bytes, at most %d are accepted",
				   sh->path, (unsigned long long)header,
				   CAIRN_SAFETENSORS_MAX_HEADER);
	if (header > sh->num_bytes - 8)
		return cairn_error(EINVAL, "%s: header: %llu bytes do not fit in the file's %zu",
				   sh->path, (unsigned long long)header, sh->num_bytes);
	if (header == 0 || sh->bytes[8] != '{')
		return cairn_error(EINVAL, "%s: header: does not start with '{'", sh->path);
	CAIRN_TRY(cairn_json_parse((const char *)sh->bytes + 8, (size_t)header, sh->path, false,
				   &sh->header));
	data = sh->bytes + 8 + header;
	data_bytes = sh->num_bytes - 8 - (size_t)header;

	want = first + json_object_size(sh->header);
	if (want > st->cap_tensors) {
		struct cairn_tensor *grown = realloc(st->tensors, want * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "%s: no memory for %zu tensors", sh->path, want);
		st->tensors = grown;
		st->cap_tensors = want;
	}
	json_object_foreach(sh->header, name, info) {
		struct cairn_tensor *t = &st->tensors[st->num_tensors];

		if (!strcmp(name, "__metadata__")) {
			CAIRN_TRY(check_metadata(info, sh->path));
			continue;
		}
		memset(t, 0, sizeof(*t));
		t->name = name;
		t->file = sh->path;
		CAIRN_TRY(parse_tensor(info, data, data_bytes, t));
		st->num_tensors++;
	}
	CAIRN_TRY(check_tiling(st->tensors + first, st->num_tensors - first, data, data_bytes,
			       sh->path));
	st->num_bytes += data_bytes;
	return 0;
}

/* Maps a file. An empty file stays unmapped: parse_shard() refuses it. */
static int map_shard(struct shard *sh)
{
	struct stat sb;
	int fd, ret = 0;
	void *p;

	fd = open(sh->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);	/* a FIFO must not wait for its writer */
	if (fd < 0)
		return cairn_error(EIO, "%s: %s", sh->path, strerror(errno));
	if (fstat(fd, &sb)) {
		ret = cairn_error(EIO, "%s: %s", sh->path, strerror(errno));
		goto out;
	}
	if (!S_ISREG(sb.st_mode)) {
		ret = cairn_error(EINVAL, "%s: not a regular file", sh->path);
		goto out;
	}
	sh->num_bytes = (size_t)sb.st_size;
	if (sh->num_bytes == 0)
		goto out;
	p = mmap(NULL, sh->num_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED) {
		ret = cairn_error(EIO, "%s: cannot be mapped: %s", sh->path, strerror(errno));
		goto out;
	}
	sh->bytes = p;
	sh->mapped = true;
out:
	close(fd);
	return ret;
}

static char *join_path(const char *dir, const char *name)
{
	size_t n = strlen(dir);
	char *path = malloc(n + strlen(name) + 2);

	if (path)
		sprintf(path, n && dir[n - 1] == '/' ? "%s%s" : "%s/%s", dir, name);
	return path;
}

static int is_basename(const char *name)
{
	if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
		return 0;
	for (; *name; name++)
		if (*name == '/' || *name == '\\' || (unsigned char)*name < 0x20 || *name == 0x7f)
			return 0;
	return 1;
}

static int by_string(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Lists the distinct file names of the weight map as shards. */
static int list_shards(struct cairn_safetensors *st, const char *index, json_t *map)
{
	size_t n = 0, total = json_object_size(map), distinct = 0;
	const char **names, *tensor;
	json_t *value;
	int ret = 0;

	names = malloc(total * sizeof(*names));
	if (!names)
		return cairn_error(ENOMEM, "%s: no memory for %zu entries", index, total);
	json_object_foreach(map, tensor, value) {
		const char *file = json_string_value(value);

		if (!file || !is_basename(file)) {
			ret = cairn_error(EINVAL, "%s: weight_map: tensor %s: %s is not a plain "
					  "file name", index, CAIRN_QUOTED(tensor),
					  file ? CAIRN_QUOTED(file) : cairn_json_type_name(value));
			goto out;
		}
		names[n++] = file;
	}
	qsort(names, n, sizeof(*names), by_string);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || strcmp(names[i], names[i - 1]))
			names[distinct++] = names[i];
	if (distinct > MAX_SHARDS) {
		ret = cairn_error(EINVAL, "%s: weight_map: %zu files, at most %d are supported",
				  index, distinct, MAX_SHARDS);
		goto out;
	}
	st->shards = calloc(distinct, sizeof(*st->shards));
	for (size_t i = 0; i < distinct && st->shards; i++) {
		st->shards[i].path = join_path(st->path, names[i]);
		if (!st->shards[i].path)
			break;
		st->num_shards++;
	}
	if (st->num_shards < distinct)
		ret = cairn_error(ENOMEM, "%s: no memory for %zu files", index, distinct);
out:
	free(names);
	return ret;
}

/* Checks that index and shards agree, tensor by tensor. st->tensors must be sorted by name. */
static int check_index(const struct cairn_safetensors *st, const char *index, json_t *map)
{
	char a[CAIRN_QUOTE_LEN], b[CAIRN_QUOTE_LEN];
	const char *name;
	json_t *value;

	for (size_t i = 0; i < st->num_tensors; i++) {
		const struct cairn_tensor *t = &st->tensors[i];
		const char *placed = json_string_value(json_object_get(map, t->name));
		const char *lies = strrchr(t->file, '/') + 1;

		if (!placed)
			return TENSOR_ERROR(t->file, t->name,
					    "the weight_map of %s does not name it", INDEX_NAME);
		if (strcmp(placed, lies))
			return TENSOR_ERROR(t->file, t->name,
					    "the weight_map of %s places it in %s", INDEX_NAME,
					    cairn_quote(placed, strlen(placed), a));
	}
	json_object_foreach(map, name, value)
		if (!cairn_safetensors_find(st, name))
			return cairn_error(EINVAL, "%s: weight_map: tensor %s is not in %s", index,
					   cairn_quote(name, strlen(name), a),
					   cairn_quote(json_string_value(value),
						       json_string_length(value), b));
	return 0;
}

static int open_index(struct cairn_safetensors *st, const char *index)
{
	json_t *root = NULL, *map = NULL;
	int ret;

	CAIRN_TRY(cairn_json_read(index, CAIRN_SAFETENSORS_MAX_HEADER, false, &root));
	ret = cairn_json_child(root, (struct cairn_json_at){ index, "" }, "weight_map", true,
			       JSON_OBJECT, &map);
	if (ret)
		goto out;
	if (json_object_size(map) == 0) {
		ret = cairn_error(EINVAL, "%s: weight_map: is empty", index);
		goto out;
	}
	ret = list_shards(st, index, map);
	for (size_t i = 0; i < st->num_shards && !ret; i++) {
		ret = map_shard(&st->shards[i]);
		if (!ret)
			ret = parse_shard(st, &st->shards[i]);
	}
	if (ret)
		goto out;
	qsort(st->tensors, st->num_tensors, sizeof(*st->tensors), by_name);
	ret = check_index(st, index, map);
out:
	json_decref(root);
	return ret;
}

/* bytes NULL: opens the file at path. */
static int open_single(struct cairn_safetensors *st, const char *path, const void *bytes,
		       size_t num_bytes)
{
	st->shards = calloc(1, sizeof(*st->shards));
	if (!st->shards)
		return cairn_error(ENOMEM, "%s: no memory", path);
	st->num_shards = 1;
	st->shards[0].path = strdup(path);
	if (!st->shards[0].path)
		return cairn_error(ENOMEM, "%s: no memory", path);
	if (bytes) {
		st->shards[0].bytes = bytes;
		st->shards[0].num_bytes = num_bytes;
	} else {
		CAIRN_TRY(map_shard(&st->shards[0]));
	}
	CAIRN_TRY(parse_shard(st, &st->shards[0]));
	qsort(st->tensors, st->num_tensors, sizeof(*st->tensors), by_name);
	return 0;
}

static struct cairn_safetensors *new_checkpoint(const char *path)
{
	struct cairn_safetensors *st = calloc(1, sizeof(*st));

	if (!st)
		return NULL;
	st->path = strdup(path);
	/* Never NULL, so that an empty checkpoint sorts and searches like any other. */
	st->tensors = malloc(sizeof(*st->tensors));
	st->cap_tensors = 1;
	if (st->path && st->tensors)
		return st;
	cairn_safetensors_close(st);
	return NULL;
}

int cairn_safetensors_open(const char *path, struct cairn_safetensors **out)
{
	char *single = NULL, *index = NULL;
	struct cairn_safetensors *st;
	struct stat sb;
	int ret;

	if (!path || !out)
		return cairn_error(EINVAL, "safetensors: null argument");
	st = new_checkpoint(path);
	if (!st)
		return cairn_error(ENOMEM, "%s: no memory", path);
	single = join_path(path, SINGLE_NAME);
	index = join_path(path, INDEX_NAME);
	if (!single || !index)
		ret = cairn_error(ENOMEM, "%s: no memory", path);
	else if (stat(path, &sb))
		ret = cairn_error(EIO, "%s: %s", path, strerror(errno));
	else if (!S_ISDIR(sb.st_mode))
		ret = open_single(st, path, NULL, 0);
	else if (!access(single, F_OK))
		ret = open_single(st, single, NULL, 0);
	else if (!access(index, F_OK))
		ret = open_index(st, index);
	else
		ret = cairn_error(EIO, "%s: holds neither " SINGLE_NAME " nor " INDEX_NAME, path);
	free(single);
	free(index);
	if (ret) {
		cairn_safetensors_close(st);
		return ret;
	}
	*out = st;
	return 0;
}

int cairn_safetensors_open_mem(const void *bytes, size_t num_bytes, const char *name,
			       struct cairn_safetensors **out)
{
	struct cairn_safetensors *st;
	int ret;

	if (!bytes || !name || !out)
		return cairn_error(EINVAL, "safetensors: null argument");
	st = new_checkpoint(name);
	if (!st)
		return cairn_error(ENOMEM, "%s: no memory", name);
	ret = open_single(st, name, bytes, num_bytes);
	if (ret) {
		cairn_safetensors_close(st);
		return ret;
	}
	*out = st;
	return 0;
}

void cairn_safetensors_close(struct cairn_safetensors *st)
{
	if (!st)
		return;
	for (size_t i = 0; i < st->num_shards; i++) {
		struct shard *sh = &st->shards[i];

		if (sh->mapped)
			munmap((void *)(uintptr_t)sh->bytes, sh->num_bytes);
		json_decref(sh->header);
		free(sh->path);
	}
	free(st->shards);
	free(st->tensors);
	free(st->path);
	free(st);
}

size_t cairn_safetensors_count(const struct cairn_safetensors *st)
{
	return st->num_tensors;
}

size_t cairn_safetensors_bytes(const struct cairn_safetensors *st)
{
	return st->num_bytes;
}

const struct cairn_tensor *cairn_safetensors_at(const struct cairn_safetensors *st, size_t i)
{
	return i < st->num_tensors ? &st->tensors[i] : NULL;
}

const struct cairn_tensor *cairn_safetensors_find(const struct cairn_safetensors *st,
						  const char *name)
{
	const struct cairn_tensor key = { .name = name };

	return bsearch(&key, st->tensors, st->num_tensors, sizeof(key), by_name);
}

/* Formats a shape: "4096, 1024". */
static const char *shape_text(const int64_t *shape, int32_t rank, char *buf, size_t len)
{
	size_t at = 0;

	buf[0] = 0;
	for (int32_t i = 0; i < rank && at < len; i++)
		at += (size_t)snprintf(buf + at, len - at, "%s%lld", i ? ", " : "",
				       (long long)shape[i]);
	return buf;
}

int cairn_safetensors_get(const struct cairn_safetensors *st, const char *name, int32_t rank,
			  const int64_t *shape, const struct cairn_tensor **tensor)
{
	const struct cairn_tensor *t = cairn_safetensors_find(st, name);
	char quoted[CAIRN_QUOTE_LEN], have[192], want[192];

	if (!t)
		return cairn_error(EINVAL, "%s: tensor %s is missing", st->path,
				   cairn_quote(name, strlen(name), quoted));
	if (t->rank != rank || memcmp(t->shape, shape, (size_t)rank * sizeof(*shape)))
		return TENSOR_ERROR(t->file, name, "shape: is [%s], must be [%s]",
				    shape_text(t->shape, t->rank, have, sizeof(have)),
				    shape_text(shape, rank, want, sizeof(want)));
	*tensor = t;
	return 0;
}
