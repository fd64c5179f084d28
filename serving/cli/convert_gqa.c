// SPDX-License-Identifier: Apache-2.0
/*
 * convert_gqa - replaces groups of KV heads by their means; `cairn convert-gqa`
 *
 * Everything is written to OUT.part, which is renamed to OUT once all data is on disk and the checkpoint
 * loads. A lock on OUT.part distinguishes a running conversion from an interrupted one.
 */
#include "serving/cli/convert_gqa.h"
#include "serving/cli/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/cli/command.h"
#include "serving/model/checkpoint/config.h"
#include "serving/model/model.h"
#include "serving/base/json.h"
#include "serving/model/checkpoint/safetensors.h"
#include "serving/tokenizer/tokenizer.h"

#define MAX_PATH	4096
#define MAX_CONFIG	(16 << 20)
#define MAX_SMALL_FILE	((size_t)1 << 30)

static const char *const others[] = {
	"generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
	"tokenizer.model", "chat_template.jinja",
};
#define NUM_OTHERS	(sizeof(others) / sizeof(others[0]))

struct conversion {
	const char *dir;
	char part[MAX_PATH];
	struct cairn_model_config config;
	int32_t num_kv_heads;
	struct cairn_safetensors *st;
	const struct cairn_tensor **order;	/* [num] tensors in the order of the new file */
	size_t num;
};

static int path_of(const char *dir, const char *name, char path[MAX_PATH])
{
	if ((size_t)snprintf(path, MAX_PATH, "%s/%s", dir, name) >= MAX_PATH)
		return cairn_error(EINVAL, "%s: the path is too long", dir);
	return 0;
}

static int close_file(FILE *f, const char *path)
{
	int bad = fflush(f) || fsync(fileno(f));

	if (fclose(f) || bad)
		return cairn_error(EIO, "%s: %s", path, strerror(errno));
	return 0;
}

static int open_file(const char *path, FILE **f)
{
	*f = fopen(path, "wxe");
	return *f ? 0 : cairn_error(EIO, "%s: %s", path, strerror(errno));
}

/* Returns whether the tensor is a projection of keys or values, whose rows are KV heads * head_dim. */
static int is_pooled(const char *name)
{
	const char *at = strstr(name, ".self_attn.");

	if (!at || strncmp(name, "model.layers.", 13))
		return 0;
	at += strlen(".self_attn.");
	return (*at == 'k' || *at == 'v') &&
	       (!strcmp(at + 1, "_proj.weight") || !strcmp(at + 1, "_proj.bias"));
}

static int check_pooled(const struct conversion *c, const struct cairn_tensor *t)
{
	int64_t rows = (int64_t)c->config.num_key_value_heads * c->config.head_dim;

	if (!cairn_dtype_is_float(cairn_st_to_dtype(t->dtype)))
		return cairn_error(EOPNOTSUPP, "%s: %s: type %s cannot be averaged", t->file, t->name,
				   cairn_st_dtype_name(t->dtype));
	if (t->rank < 1 || t->rank > 2 || t->shape[0] != rows)
		return cairn_error(EINVAL, "%s: %s: has %lld rows, not %lld: %d heads of %d", t->file,
				   t->name, t->rank ? (long long)t->shape[0] : 0, (long long)rows,
				   c->config.num_key_value_heads, c->config.head_dim);
	return 0;
}

static size_t new_bytes(const struct conversion *c, const struct cairn_tensor *t)
{
	size_t group = (size_t)(c->config.num_key_value_heads / c->num_kv_heads);

	return is_pooled(t->name) ? t->num_bytes / group : t->num_bytes;
}

/* Sorts larger elements first, so that each tensor is aligned to its element size, and then by name. */
static int by_size(const void *a, const void *b)
{
	const struct cairn_tensor *x = *(const struct cairn_tensor *const *)a,
				  *y = *(const struct cairn_tensor *const *)b;
	int bits = (int)cairn_st_dtype_bits(y->dtype) - (int)cairn_st_dtype_bits(x->dtype);

	return bits ? bits : strcmp(x->name, y->name);
}

static int put_in_order(struct conversion *c)
{
	int pooled = 0;

	c->num = cairn_safetensors_count(c->st);
	c->order = calloc(c->num + 1, sizeof(*c->order));
	if (!c->order)
		return cairn_error(ENOMEM, "convert-gqa: no memory");
	for (size_t i = 0; i < c->num; i++) {
		c->order[i] = cairn_safetensors_at(c->st, i);
		if (!is_pooled(c->order[i]->name))
			continue;
		CAIRN_TRY(check_pooled(c, c->order[i]));
		pooled++;
	}
	if (pooled < 2 * c->config.num_hidden_layers)
		return cairn_error(EINVAL, "%s: has %d projections of keys and values for %d layers",
				   c->dir, pooled, c->config.num_hidden_layers);
	qsort(c->order, c->num, sizeof(*c->order), by_size);
	return 0;
}

static int write_header(const struct conversion *c, FILE *f, const char *path)
{
	json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	size_t begin = 0, len;
	char *text;
	uint64_t padded;

	for (size_t i = 0; root && i < c->num; i++) {
		const struct cairn_tensor *t = c->order[i];
		size_t end = begin + new_bytes(c, t);
		json_t *shape = json_array();

		for (int32_t k = 0; k < t->rank; k++)
			json_array_append_new(shape, json_integer(k || !is_pooled(t->name) ? t->shape[k] :
					      (json_int_t)c->num_kv_heads * c->config.head_dim));
		json_object_set_new(root, t->name, json_pack("{s:s, s:o, s:[I,I]}", "dtype",
				    cairn_st_dtype_name(t->dtype), "shape", shape, "data_offsets",
				    (json_int_t)begin, (json_int_t)end));
		begin = end;
	}
	text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	len = root ? json_object_size(root) : 0;
	json_decref(root);
	if (!text || len != c->num + 1) {
		free(text);
		return cairn_error(ENOMEM, "convert-gqa: no memory for a header");
	}
	len = strlen(text);
	padded = (len + 7) / 8 * 8;
	if (fwrite(&padded, 8, 1, f) != 1 || fprintf(f, "%-*s", (int)padded, text) != (int)padded) {
		free(text);
		return cairn_error(EIO, "%s: %s", path, strerror(errno));
	}
	free(text);
	return 0;
}

/* Writes the new heads. Each row is the mean of the same row of all heads of the group. */
static int write_pooled(const struct conversion *c, const struct cairn_tensor *t, FILE *f)
{
	int dtype = cairn_st_to_dtype(t->dtype), group = c->config.num_key_value_heads / c->num_kv_heads;
	int64_t dim = c->config.head_dim, cols = t->rank == 2 ? t->shape[1] : 1;
	size_t row_bytes = (size_t)cols * cairn_dtype_bytes(dtype), wrote = 1;
	void *row = malloc(row_bytes ? row_bytes : 1);

	for (int64_t r = 0; row && wrote && r < c->num_kv_heads * dim; r++) {
		int64_t first = r / dim * group * dim + r % dim;	/* row r, in its group's first head */

		for (int64_t k = 0; k < cols; k++) {
			double sum = 0;

			for (int64_t g = 0; g < group; g++)
				sum += cairn_load(t->data, dtype, (first + g * dim) * cols + k);
			cairn_store(row, dtype, k, sum / group);
		}
		wrote = !row_bytes || fwrite(row, row_bytes, 1, f) == 1;
	}
	free(row);
	return row ? wrote ? 0 : -EIO : -ENOMEM;
}

static int write_weights(const struct conversion *c)
{
	char path[MAX_PATH];
	FILE *f;
	int ret;

	CAIRN_TRY(path_of(c->part, "model.safetensors", path));
	CAIRN_TRY(open_file(path, &f));
	ret = write_header(c, f, path);
	for (size_t i = 0; !ret && i < c->num; i++) {
		const struct cairn_tensor *t = c->order[i];

		if (is_pooled(t->name))
			ret = write_pooled(c, t, f);
		else
			ret = !t->num_bytes || fwrite(t->data, t->num_bytes, 1, f) == 1 ? 0 : -EIO;
		if (ret)
			ret = cairn_error(-ret, "%s: %s: %s", path, t->name, strerror(errno));
	}
	if (ret) {
		fclose(f);
		return ret;
	}
	return close_file(f, path);
}

static int write_config(const struct conversion *c)
{
	char from[MAX_PATH], to[MAX_PATH];
	json_t *root;
	FILE *f;
	int ret;

	CAIRN_TRY(path_of(c->dir, "config.json", from));
	CAIRN_TRY(path_of(c->part, "config.json", to));
	CAIRN_TRY(cairn_json_read(from, MAX_CONFIG, false, &root));
	ret = json_object_set_new(root, "num_key_value_heads", json_integer(c->num_kv_heads)) ?
	      cairn_error(ENOMEM, "convert-gqa: no memory") : open_file(to, &f);
	if (!ret) {
		ret = json_dumpf(root, f, JSON_INDENT(2) | JSON_PRESERVE_ORDER) || fputc('\n', f) == EOF ?
		      cairn_error(EIO, "%s: %s", to, strerror(errno)) : 0;
		ret = ret ? (fclose(f), ret) : close_file(f, to);
	}
	json_decref(root);
	return ret;
}

static int copy_other(const struct conversion *c, const char *name)
{
	char from[MAX_PATH], to[MAX_PATH], *data;
	size_t n;
	FILE *f;
	int ret;

	CAIRN_TRY(path_of(c->dir, name, from));
	CAIRN_TRY(path_of(c->part, name, to));
	if (access(from, F_OK))
		return 0;
	CAIRN_TRY(cairn_read_file(from, MAX_SMALL_FILE, &data, &n));
	ret = open_file(to, &f);
	if (!ret) {
		ret = n && fwrite(data, n, 1, f) != 1 ?
		      cairn_error(EIO, "%s: %s", to, strerror(errno)) : 0;
		ret = ret ? (fclose(f), ret) : close_file(f, to);
	}
	free(data);
	return ret;
}

static void remove_part(const struct conversion *c)
{
	static const char *const made[] = { "config.json", "model.safetensors" };
	char path[MAX_PATH];

	for (size_t i = 0; i < NUM_OTHERS; i++)
		if (!path_of(c->part, others[i], path))
			unlink(path);
	for (size_t i = 0; i < 2; i++)
		if (!path_of(c->part, made[i], path))
			unlink(path);
	rmdir(c->part);
}

static int check(const struct conversion *c)
{
	const struct cairn_model_config *m = &c->config;

	if (m->latent.kv_lora_rank)
		return cairn_error(EOPNOTSUPP, "%s: latent attention has no KV heads",
				   c->dir);
	if (m->w4.stored)
		return cairn_error(EOPNOTSUPP, "%s: heads of a matrix that is stored in 4 bits cannot be "
				   "averaged", c->dir);
	if (c->num_kv_heads < 1 || m->num_key_value_heads % c->num_kv_heads)
		return cairn_error(EINVAL, "%s: num_key_value_heads: %d cannot be grouped into %d", c->dir,
				   m->num_key_value_heads, c->num_kv_heads);
	return 0;
}

/* Checks that a checkpoint loads: all weights, and the tokenizer if it has one. */
static int verify(const char *dir, const struct cairn_model_config *config)
{
	struct cairn_tokenizer *tokenizer = NULL;
	char path[MAX_PATH];
	int ret = 0;

	CAIRN_TRY(cairn_model_verify(dir));
	CAIRN_TRY(path_of(dir, "tokenizer.json", path));
	if (access(path, F_OK))
		return 0;
	CAIRN_TRY(cairn_tokenizer_open(path, &tokenizer));
	if (cairn_tokenizer_size(tokenizer) > config->vocab_size)
		ret = cairn_error(EINVAL, "%s: has %d tokens, vocab_size of config.json is %d", path,
				  cairn_tokenizer_size(tokenizer), config->vocab_size);
	cairn_tokenizer_free(tokenizer);
	return ret;
}

/*
 * Makes the directory OUT.part and locks it until *lock is closed. An OUT.part without a lock was left by an
 * interrupted conversion and is removed first. It must hold only files that a conversion makes; any other
 * file stays and is an error.
 */
static int make_part(const struct conversion *c, int *lock)
{
	for (int i = 0; i < 2; i++) {
		int made = !mkdir(c->part, 0777), fd;

		if (!made && errno != EEXIST)
			return cairn_error(EIO, "%s: %s", c->part, strerror(errno));
		fd = open(c->part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return cairn_error(made ? EIO : EEXIST, "%s: %s", c->part, strerror(errno));
		if (flock(fd, LOCK_EX | LOCK_NB)) {
			close(fd);
			return cairn_error(EEXIST, "%s: another conversion is writing it", c->part);
		}
		if (made) {
			*lock = fd;
			return 0;
		}
		remove_part(c);
		close(fd);
	}
	return cairn_error(EEXIST, "%s: exists and holds files that no conversion makes", c->part);
}

int cairn_convert_gqa(const char *dir, const char *out, int32_t num_kv_heads)
{
	struct conversion c = { .dir = dir, .num_kv_heads = num_kv_heads };
	struct stat st;
	int ret, lock = -1;

	CAIRN_TRY(cairn_model_config_load(dir, &c.config));
	CAIRN_TRY(check(&c));
	if (!lstat(out, &st))
		return cairn_error(EEXIST, "%s: exists already", out);
	if ((size_t)snprintf(c.part, sizeof(c.part), "%s.part", out) >= sizeof(c.part))
		return cairn_error(EINVAL, "%s: the path is too long", out);
	CAIRN_TRY(cairn_safetensors_open(dir, &c.st));
	ret = put_in_order(&c);
	if (ret)
		goto out_close;
	ret = verify(dir, &c.config);
	if (!ret)
		ret = make_part(&c, &lock);
	if (ret)
		goto out_close;
	ret = write_config(&c);
	for (size_t i = 0; !ret && i < NUM_OTHERS; i++)
		ret = copy_other(&c, others[i]);
	if (!ret)
		ret = write_weights(&c);
	if (!ret)
		ret = verify(c.part, &c.config);
	if (!ret && rename(c.part, out))
		ret = cairn_error(EIO, "%s: %s", out, strerror(errno));
	if (ret)
		remove_part(&c);
	close(lock);
out_close:
	free(c.order);
	cairn_safetensors_close(c.st);
	return ret;
}

static const char usage[] =
	"usage: cairn convert-gqa --model DIR --kv-heads N --out DIR\n"
	"\n"
	"Makes a checkpoint with N key-value heads, each the mean of a group of the old ones\n"
	"(N = 1: multi-query attention). The result needs some further training. A checkpoint that does\n"
	"not load, tokenizer included, is refused, and the result is checked before it is put in place.\n"
	"\n"
	"Exit status: 0 success, 1 a file could not be read or written, 2 bad usage or input.\n";

int cairn_cmd_convert_gqa(int argc, char **argv)
{
	static const struct option options[] = {
		{ "model", required_argument, NULL, 'm' }, { "kv-heads", required_argument, NULL, 'k' },
		{ "out", required_argument, NULL, 'o' }, { "help", no_argument, NULL, 'h' }, { 0 },
	};
	const char *model = NULL, *out = NULL;
	char *end = NULL;
	long heads = 0;
	int o, ret;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (o == 'h') {
			fputs(usage, stdout);
			return CAIRN_EXIT_OK;
		}
		if (o == 'm') {
			model = optarg;
		} else if (o == 'o') {
			out = optarg;
		} else if (o == 'k') {
			heads = strtol(optarg, &end, 10);
			if (!*optarg || *end || heads < 1 || heads > CAIRN_MAX_HEADS) {
				fprintf(stderr, "cairn convert-gqa: --kv-heads: '%s' is not a number from 1 "
					"to %d\n", optarg, CAIRN_MAX_HEADS);
				return CAIRN_EXIT_USAGE;
			}
		} else {
			return CAIRN_EXIT_USAGE;
		}
	}
	if (optind < argc || !model || !out || !heads) {
		fprintf(stderr, "cairn convert-gqa: %s%s\n", optind < argc ? "unexpected argument: " :
			"--model, --kv-heads and --out are required", optind < argc ? argv[optind] : "");
		return CAIRN_EXIT_USAGE;
	}
	ret = cairn_convert_gqa(model, out, (int32_t)heads);
	if (!ret)
		return CAIRN_EXIT_OK;
	fprintf(stderr, "cairn convert-gqa: %s\n", cairn_last_error());
	return ret == -EIO || ret == -ENOMEM ? CAIRN_EXIT_FAILED : CAIRN_EXIT_USAGE;
}
