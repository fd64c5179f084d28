/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_test - breaks each rule of the format separately */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "serving/base/json_test.h"
#include "serving/model/checkpoint/safetensors.h"

/* Makes a file of a header and num_data bytes, malloc()ed with its exact size. claimed: header_bytes. */
static uint8_t *make_file(const char *header, size_t num_data, uint64_t claimed, size_t *num_bytes)
{
	size_t n = strlen(header);
	uint8_t *file = malloc(8 + n + num_data);

	if (!file)
		return NULL;
	for (int i = 0; i < 8; i++)
		file[i] = (uint8_t)(claimed >> 8 * i);
	for (size_t i = 0; i < n; i++)
		file[8 + i] = header[i] == '\'' ? '"' : (uint8_t)header[i];
	for (size_t i = 0; i < num_data; i++)
		file[8 + n + i] = (uint8_t)i;
	*num_bytes = 8 + n + num_data;
	return file;
}

/* One tensor's entry in a header. */
#define T(dtype, shape, offsets) \
	"{'dtype':'" dtype "','shape':" shape ",'data_offsets':" offsets "}"

static const struct broken {
	const char *header;
	size_t num_data;
	uint64_t claimed;	/* header_bytes; 0: the actual length */
	const char *says[2];
} broken[] = {
	/* the header itself */
	{ "", 0, 0, { "header", "'{'" } },
	{ "{}", 0, 3, { "header: 3 bytes", "do not fit" } },
	{ "{}", 0, 100000001, { "header: 100000001 bytes", "at most 100000000" } },
	{ "{}", 0, UINT64_MAX, { "header: 18446744073709551615 bytes", "at most" } },
	{ "{}", 0, UINT64_MAX - 7, { "header", "at most" } },
	{ " {}", 0, 0, { "header", "'{'" } },
	{ "[]", 0, 0, { "header", "'{'" } },
	{ "{", 0, 0, { "line 1", "JSON" } },
	{ "{}x", 0, 0, { "line 1", "end of file" } },
	{ "{'a\xff':{}}", 0, 0, { "line 1", "0xff" } },
	{ "{'a':" T("U8", "[1]", "[0,1]") ",'a':" T("U8", "[1]", "[1,2]") "}", 2, 0,
	  { "duplicate", "\\\"a\\\"" } },
	{ "{'__metadata__':[]}", 0, 0, { "__metadata__", "an object" } },
	{ "{'__metadata__':{'format':1}}", 0, 0,
	  { "__metadata__", "\"format\" must be a string" } },
	/* one tensor */
	{ "{'a':7}", 0, 0, { "tensor \"a\"", "must be an object" } },
	{ "{'a':{'shape':[1],'data_offsets':[0,1]}}", 1, 0, { "tensor \"a\": dtype", "missing" } },
	{ "{'a':" T("u8", "[1]", "[0,1]") "}", 1, 0, { "tensor \"a\": dtype", "\"u8\"" } },
	{ "{'a':{'dtype':'U8','data_offsets':[0,1]}}", 1, 0, { "tensor \"a\": shape", "missing" } },
	{ "{'a':" T("U8", "1", "[0,1]") "}", 1, 0, { "tensor \"a\": shape", "an integer" } },
	{ "{'a':" T("U8", "[-1]", "[0,1]") "}", 1, 0, { "tensor \"a\": shape[0]", ">= 0" } },
	{ "{'a':" T("U8", "[1.0]", "[0,1]") "}", 1, 0, { "tensor \"a\": shape[0]", "integer" } },
	{ "{'a':" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, 0,
	  { "tensor \"a\": shape", "9" } },
	{ "{'a':" T("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, 0,
	  { "tensor \"a\": shape", "overflows" } },
	{ "{'a':" T("F64", "[2305843009213693952]", "[0,0]") "}", 0, 0,
	  { "tensor \"a\": shape", "overflows" } },
	{ "{'a':" T("F4", "[3]", "[0,1]") "}", 1, 0, { "tensor \"a\": shape", "whole bytes" } },
	{ "{'a':" T("F16", "[2]", "[0,3]") "}", 3, 0, { "tensor \"a\": data_offsets", "make 4" } },
	{ "{'a':" T("U8", "[1]", "[1,0]") "}", 1, 0, { "tensor \"a\": data_offsets", "range" } },
	{ "{'a':" T("U8", "[1]", "[-1,0]") "}", 1, 0, { "tensor \"a\": data_offsets", "range" } },
	{ "{'a':" T("U8", "[1]", "[0]") "}", 1, 0, { "tensor \"a\": data_offsets", "two" } },
	{ "{'a':" T("U8", "[1]", "[0,1.5]") "}", 1, 0,
	  { "tensor \"a\": data_offsets", "integers" } },
	{ "{'a':" T("U8", "[2]", "[0,2]") "}", 1, 0,
	  { "tensor \"a\": data_offsets", "ends past" } },
	{ "{'a':" T("U8", "[1]", "[9223372036854775807,9223372036854775807]") "}", 1, 0,
	  { "tensor \"a\": data_offsets", "ends past" } },
	{ "{'a':" T("U8", "[1]", "[0,18446744073709551616]") "}", 1, 0, { "line 1", "big" } },
	/* several tensors */
	{ "{'a':" T("U8", "[2]", "[0,2]") ",'b':" T("U8", "[2]", "[1,3]") "}", 3, 0,
	  { "tensor \"b\"", "overlaps tensor \"a\"" } },
	{ "{'a':" T("U8", "[2]", "[0,2]") ",'b':" T("U8", "[2]", "[0,2]") "}", 2, 0,
	  { "overlaps", "tensor" } },
	{ "{'a':" T("U8", "[2]", "[0,2]") ",'b':" T("U8", "[2]", "[3,5]") "}", 5, 0,
	  { "tensor \"b\"", "a hole of 1 bytes" } },
	{ "{'a':" T("U8", "[2]", "[1,3]") "}", 3, 0, { "tensor \"a\"", "a hole of 1 bytes" } },
	{ "{'a':" T("U8", "[2]", "[0,2]") "}", 3, 0, { "last 1 bytes", "no tensor" } },
	{ "{}", 3, 0, { "last 3 bytes", "no tensor" } },
	/* An empty tensor inside another tensor's bytes is an overlap, too. */
	{ "{'a':" T("U8", "[2]", "[0,2]") ",'b':" T("U8", "[0]", "[1,1]") "}", 2, 0,
	  { "tensor \"b\"", "overlaps tensor \"a\"" } },
};

static void refused(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(broken); i++) {
		const struct broken *b = &broken[i];
		struct cairn_safetensors *st = NULL;
		size_t n = 0;
		uint8_t *file = make_file(b->header, b->num_data,
					  b->claimed ? b->claimed : strlen(b->header), &n);
		int ret;

		if (!EXPECT(t, file != NULL))
			return;
		ret = cairn_safetensors_open_mem(file, n, "dir/x.safetensors", &st);
		if (!EXPECT(t, ret == -EINVAL && !st) ||
		    !EXPECT_CONTAINS(t, cairn_last_error(), "dir/x.safetensors: ") ||
		    !EXPECT_CONTAINS(t, cairn_last_error(), b->says[0]) ||
		    !EXPECT_CONTAINS(t, cairn_last_error(), b->says[1]))
			cairn_note(t, "%s", b->header);
		cairn_safetensors_close(st);
		free(file);
	}
}

static const char two[] =
	"{'__metadata__':{'format':'pt'},'b.weight':{'dtype':'BF16','shape':[2,3],"
	"'data_offsets':[4,16]},'z':{'dtype':'F32','shape':[],'data_offsets':[0,4]},"
	"'empty':{'dtype':'F4','shape':[0,7],'data_offsets':[4,4]},"
	"'a':{'dtype':'F6_E2M3','shape':[4],'data_offsets':[16,19]}}   ";

static void accepted(struct cairn_test *t)
{
	struct cairn_safetensors *st = NULL;
	const struct cairn_tensor *x = NULL;
	size_t n = 0;
	uint8_t *file = make_file(two, 19, sizeof(two) - 1, &n);

	if (!EXPECT(t, file && !cairn_safetensors_open_mem(file, n, "m", &st)))
		goto out;
	EXPECT(t, cairn_safetensors_count(st) == 4 && cairn_safetensors_bytes(st) == 19);
	EXPECT(t, !strcmp(cairn_safetensors_at(st, 0)->name, "a") &&
			  !strcmp(cairn_safetensors_at(st, 3)->name, "z"));
	EXPECT(t, !cairn_safetensors_at(st, 4) && !cairn_safetensors_find(st, "c"));
	x = cairn_safetensors_find(st, "b.weight");
	if (EXPECT(t, x != NULL)) {
		EXPECT(t, x->dtype == CAIRN_ST_BF16 && x->rank == 2 && x->shape[0] == 2 &&
				  x->shape[1] == 3);
		EXPECT(t, x->num_bytes == 12 && ((const uint8_t *)x->data)[0] == 4 &&
				  ((const uint8_t *)x->data)[11] == 15);
		EXPECT(t, !strcmp(x->file, "m"));
	}
	x = cairn_safetensors_find(st, "empty");
	EXPECT(t, x && x->num_bytes == 0 && x->data && x->rank == 2);
	x = cairn_safetensors_find(st, "z");
	EXPECT(t, x && x->rank == 0 && x->num_bytes == 4);

	EXPECT(t, !cairn_safetensors_get(st, "b.weight", 2, (int64_t[]){ 2, 3 }, &x) &&
			  x->dtype == CAIRN_ST_BF16);
	EXPECT(t, cairn_safetensors_get(st, "b.weight", 2, (int64_t[]){ 3, 2 }, &x) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(),
			"m: tensor \"b.weight\": shape: is [2, 3], must be [3, 2]");
	EXPECT(t, cairn_safetensors_get(st, "b.weight", 1, (int64_t[]){ 6 }, &x) == -EINVAL);
	EXPECT(t, cairn_safetensors_get(st, "nothing\n", 1, (int64_t[]){ 6 }, &x) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "m: tensor \"nothing\\x0a\" is missing");
out:
	cairn_safetensors_close(st);
	free(file);
}

static void every_prefix_is_refused(struct cairn_test *t)
{
	size_t n = 0;
	uint8_t *file = make_file(two, 19, sizeof(two) - 1, &n);

	for (size_t cut = 0; cut < n && file; cut++) {
		struct cairn_safetensors *st = NULL;
		uint8_t *part = malloc(cut + !cut);

		if (!EXPECT(t, part != NULL))
			break;
		memcpy(part, file, cut);
		EXPECT(t, cairn_safetensors_open_mem(part, cut, "cut", &st) == -EINVAL);
		free(part);
	}
	free(file);
}

static void every_dtype(struct cairn_test *t)
{
	for (int d = 0; d < CAIRN_ST_NUM_DTYPES; d++) {
		unsigned bytes =
			cairn_st_dtype_bits((enum cairn_st_dtype)d); /* bytes of eight elements */
		struct cairn_safetensors *st = NULL;
		char header[128];
		size_t n = 0;
		uint8_t *file;

		snprintf(header, sizeof(header),
			 "{'x':" T("%s", "[2,4]", "[0,%u]") "}",
			 cairn_st_dtype_name((enum cairn_st_dtype)d), bytes);
		file = make_file(header, bytes, strlen(header), &n);
		if (EXPECT(t, file && !cairn_safetensors_open_mem(file, n, "m", &st)))
			EXPECT(t, (int)cairn_safetensors_at(st, 0)->dtype == d);
		cairn_safetensors_close(st);
		free(file);
	}
	EXPECT(t, cairn_st_to_dtype(CAIRN_ST_BF16) == CAIRN_BF16 &&
			  cairn_st_to_dtype(CAIRN_ST_F8_E4M3) == -1);
	EXPECT(t, cairn_st_dtype_bits((enum cairn_st_dtype)99) == 0);
}

static void write_shard(struct cairn_test *t, const char *name, const char *tensor)
{
	char header[256], path[4096];
	size_t n = 0;
	uint8_t *file;

	snprintf(header, sizeof(header), "{'%s':" T("U8", "[4]", "[0,4]") "}", tensor);
	file = make_file(header, 4, strlen(header), &n);
	cairn_tmpfile(t, path, sizeof(path), name, file, n);
	free(file);
}

static void sharded(struct cairn_test *t)
{
#define IN(map) "{'weight_map':{" map "}}"
	static const struct {
		const char *index;
		int ret;
		const char *says[2];
	} cases[] = {
		{ IN("'a':'1.safetensors','b':'2.safetensors'"), 0, { "", "" } },
		{ "{'weight_map':{'a':'1.safetensors'},'metadata':{}}", 0, { "", "" } },
		{ IN("'a':'1.safetensors','b':'2.safetensors','c':'2.safetensors'"), -EINVAL,
		  { "index.json: weight_map: tensor \"c\"", "not in \"2.safetensors\"" } },
		{ IN("'c':'1.safetensors'"), -EINVAL,
		  { "1.safetensors: tensor \"a\"", "does not name it" } },
		{ IN("'a':'2.safetensors','b':'2.safetensors'"), -EINVAL,
		  { "index.json: weight_map: tensor \"a\"", "not in \"2.safetensors\"" } },
		{ IN("'a':'3.safetensors','b':'1.safetensors'"), -EINVAL,
		  { "1.safetensors: tensor \"a\"", "places it in \"3.safetensors\"" } },
		{ IN("'a':'../1.safetensors'"), -EINVAL,
		  { "weight_map: tensor \"a\"", "plain file name" } },
		{ IN("'a':'/etc/passwd'"), -EINVAL, { "weight_map: tensor \"a\"", "plain file name" } },
		{ IN("'a':'..'"), -EINVAL, { "weight_map: tensor \"a\"", "plain file name" } },
		{ IN("'a':''"), -EINVAL, { "weight_map: tensor \"a\"", "plain file name" } },
		{ IN("'a':7"), -EINVAL, { "weight_map: tensor \"a\"", "an integer" } },
		{ IN("'a':'none.safetensors'"), -EIO, { "none.safetensors", "No such file" } },
		{ IN("'a':'short.safetensors'"), -EINVAL, { "short.safetensors", "has 3" } },
		{ IN("'a':'1.safetensors','a':'2.safetensors'"), -EINVAL,
		  { "index.json", "duplicate" } },
		{ IN(""), -EINVAL, { "weight_map", "empty" } },
		{ "{}", -EINVAL, { "weight_map", "missing" } },
		{ "{'weight_map':{'a':'1.saf", -EINVAL, { "index.json", "JSON" } },
	};
	struct cairn_safetensors *st = NULL;
	char path[4096];

	EXPECT(t, cairn_safetensors_open(cairn_tmpdir(t), &st) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "holds neither");
	EXPECT(t, cairn_safetensors_open("/nonexistent", &st) == -EIO);
	write_shard(t, "1.safetensors", "a");
	write_shard(t, "2.safetensors", "b");
	write_shard(t, "3.safetensors", "a");
	cairn_tmpfile(t, path, sizeof(path), "short.safetensors", "{}", 3);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char *text = cairn_json_text("", NULL, cases[i].index);

		st = NULL;
		cairn_tmpfile(t, path, sizeof(path), "model.safetensors.index.json", text,
			      strlen(text));
		free(text);
		if (!EXPECT(t, cairn_safetensors_open(cairn_tmpdir(t), &st) == cases[i].ret))
			cairn_note(t, "%s: %s", cases[i].index, cairn_last_error());
		if (cases[i].ret) {
			EXPECT_CONTAINS(t, cairn_last_error(), cases[i].says[0]);
			EXPECT_CONTAINS(t, cairn_last_error(), cases[i].says[1]);
		} else if (st) {
			const struct cairn_tensor *a = cairn_safetensors_find(st, "a");

			EXPECT(t, a && a->num_bytes == 4 && !memcmp(a->data, "\0\1\2\3", 4));
		}
		cairn_safetensors_close(st);
	}
	/* A single file takes precedence over the index, and a shard can be opened by its own name. */
	write_shard(t, "model.safetensors", "only");
	EXPECT(t,
	       !cairn_safetensors_open(cairn_tmpdir(t), &st) && cairn_safetensors_find(st, "only"));
	cairn_safetensors_close(st);
	snprintf(path, sizeof(path), "%s/2.safetensors", cairn_tmpdir(t));
	EXPECT(t, !cairn_safetensors_open(path, &st) && cairn_safetensors_find(st, "b"));
	cairn_safetensors_close(st);
}

static const struct cairn_unit units[] = {
	{ "accepted", accepted }, { "refused", refused }, { "every_prefix_is_refused",
	  every_prefix_is_refused },
	{ "every_dtype", every_dtype }, { "sharded", sharded },
};

const struct cairn_family cairn_safetensors_family = {
	.stage = "serving", .name = "safetensors", .units = units, .num_units = ARRAY_SIZE(units),
};
