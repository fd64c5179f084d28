// SPDX-License-Identifier: Apache-2.0
/* convert_gqa_test - checks the means of heads element by element, that a model with equal heads keeps its
 * logits, and that a refused conversion leaves no files behind */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "conformance/harness.h"
#include "serving/cli/convert_gqa.h"
#include "serving/base/json.h"
#include "serving/model/ref/model_ref.h"
#include "serving/model/model_test.h"

/* Returns the directory of a golden model in bf16 with two KV heads of 64. */
static const char *golden_dir(char dir[PATH_MAX])
{
	snprintf(dir, PATH_MAX, "%s/serving/golden/llama2_tiny", cairn_data_dir());
	return dir;
}

static const char *out_dir(struct cairn_test *t, const char *name, char dir[PATH_MAX])
{
	snprintf(dir, PATH_MAX, "%s/%s", cairn_tmpdir(t), name);
	return dir;
}

static int is_kv(const char *name)
{
	return strstr(name, ".k_proj.") || strstr(name, ".v_proj.");
}

/* Halves the number of KV heads and checks that each is the mean of two neighbours. */
static void halved(struct cairn_test *t, const char *dir, int heads, int head_dim)
{
	char out[PATH_MAX];
	struct cairn_safetensors *a = NULL, *b = NULL;
	struct cairn_model_config c;
	int pooled = 0, wrong = 0;

	if (!EXPECT(t, cairn_convert_gqa(dir, out_dir(t, heads == 2 ? "one" : "more", out), heads / 2) == 0))
		return;
	EXPECT(t, cairn_model_config_load(out, &c) == 0);
	EXPECT(t, c.num_key_value_heads == heads / 2 && c.num_attention_heads == heads);
	EXPECT(t, cairn_safetensors_open(dir, &a) == 0 && cairn_safetensors_open(out, &b) == 0);
	EXPECT(t, cairn_safetensors_count(a) == cairn_safetensors_count(b));
	for (size_t i = 0; a && b && i < cairn_safetensors_count(a); i++) {
		const struct cairn_tensor *x = cairn_safetensors_at(a, i),
					  *y = cairn_safetensors_find(b, x->name);
		int64_t half = (int64_t)(x->num_bytes / 4), head = half * 2 / heads;

		if (!EXPECT(t, y && y->dtype == x->dtype))
			break;
		if (!is_kv(x->name)) {
			EXPECT(t, y->num_bytes == x->num_bytes && !memcmp(x->data, y->data, x->num_bytes));
			continue;
		}
		pooled++;
		EXPECT(t, y->rank == x->rank && y->shape[0] == 64 && y->shape[1] == x->shape[1]);
		EXPECT(t, head == head_dim * x->shape[1]);
		EXPECT(t, y->num_bytes == x->num_bytes / 2);
		for (int64_t k = 0; k < half; k++) {
			int64_t at = k / head * 2 * head + k % head;
			uint16_t want;

			cairn_store(&want, CAIRN_BF16, 0, (cairn_load(x->data, CAIRN_BF16, at) +
							   cairn_load(x->data, CAIRN_BF16, at + head)) / 2);
			wrong += memcmp(&want, (const uint16_t *)y->data + k, 2) != 0;
		}
	}
	EXPECT(t, pooled == 4 && wrong == 0);
	cairn_safetensors_close(a);
	cairn_safetensors_close(b);
}

/* Two heads of 64 become one; the same 128 rows, declared as four heads of 32, become two. */
static void means(struct cairn_test *t)
{
	char dir[PATH_MAX], four[PATH_MAX];

	golden_dir(dir);
	halved(t, dir, 2, 64);
	if (altered_checkpoint(t, dir, "\"num_attention_heads\": 2,\n  \"num_hidden_layers\": 2,\n  "
			       "\"num_key_value_heads\": 2", "\"num_attention_heads\": 4,\n"
			       "\"num_hidden_layers\": 2,\n\"num_key_value_heads\": 4", four))
		return;
	halved(t, four, 4, 32);
}

/* If the second head equals the first, one head for both gives bitwise equal logits. */
static void equal_heads(struct cairn_test *t)
{
	static const int32_t ids[] = { 1, 17, 5, 99, 140, 3, 64 };
	enum { NUM = sizeof(ids) / sizeof(ids[0]), VOCAB = 192 };
	static double before[NUM * VOCAB], after[NUM * VOCAB];
	char dir[PATH_MAX], path[PATH_MAX + 32], out[PATH_MAX], *bytes;
	struct cairn_safetensors *st = NULL;
	size_t n;

	golden_dir(dir);
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	if (!EXPECT(t, cairn_read_file(path, 1 << 24, &bytes, &n) == 0))
		return;
	if (!EXPECT(t, cairn_safetensors_open_mem(bytes, n, "copy", &st) == 0))
		return;
	for (size_t i = 0; i < cairn_safetensors_count(st); i++) {
		const struct cairn_tensor *x = cairn_safetensors_at(st, i);
		size_t half = x->num_bytes / 2;

		if (is_kv(x->name))
			memcpy(bytes + ((const char *)x->data - bytes) + half, x->data, half);
	}
	cairn_safetensors_close(st);
	cairn_tmpfile(t, path, sizeof(path), "model.safetensors", bytes, n);
	free(bytes);
	if (altered_config(t, dir, "", "") ||
	    !EXPECT(t, cairn_convert_gqa(cairn_tmpdir(t), out_dir(t, "mqa", out), 1) == 0))
		return;
	EXPECT(t, cairn_model_ref(cairn_tmpdir(t), ids, NUM, 0, 0, before) == 0);
	EXPECT(t, cairn_model_ref(out, ids, NUM, 0, 0, after) == 0);
	EXPECT(t, before[5] != 0 && !memcmp(before, after, sizeof(before)));
}

static const char tokenizer[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1},"
				"\"merges\": []}}";

/* With an unchanged number of heads the tensors are equal, and the checkpoint's other files are copied. */
static void same_number(struct cairn_test *t)
{
	char dir[PATH_MAX], path[PATH_MAX + 32], out[PATH_MAX];
	struct cairn_safetensors *a = NULL, *b = NULL;

	crafted_checkpoint(t, "float32", "F32", 0, dir);
	cairn_tmpfile(t, path, sizeof(path), "tokenizer.json", tokenizer, strlen(tokenizer));
	if (!EXPECT(t, cairn_convert_gqa(dir, out_dir(t, "same", out), 1) == 0))
		return;
	EXPECT(t, cairn_safetensors_open(dir, &a) == 0 && cairn_safetensors_open(out, &b) == 0);
	for (size_t i = 0; a && b && i < cairn_safetensors_count(a); i++) {
		const struct cairn_tensor *x = cairn_safetensors_at(a, i),
					  *y = cairn_safetensors_find(b, x->name);

		EXPECT(t, y && y->rank == x->rank && y->num_bytes == x->num_bytes &&
		       !memcmp(x->data, y->data, x->num_bytes));
	}
	snprintf(path, sizeof(path), "%s/tokenizer.json", out);
	EXPECT(t, access(path, R_OK) == 0);
	cairn_safetensors_close(a);
	cairn_safetensors_close(b);
}

static void refused(struct cairn_test *t, const char *dir, const char *out, int heads, int want,
		    const char *text)
{
	char part[PATH_MAX + 8];

	EXPECT(t, cairn_convert_gqa(dir, out, heads) == want);
	EXPECT_CONTAINS(t, cairn_last_error(), text);
	snprintf(part, sizeof(part), "%s.part", out);
	EXPECT(t, access(part, F_OK) != 0 && (want == -EEXIST || access(out, F_OK) != 0));
}

static void refusals(struct cairn_test *t)
{
	char dir[PATH_MAX], out[PATH_MAX], latent[PATH_MAX], crafted[PATH_MAX];

	golden_dir(dir);
	out_dir(t, "none", out);
	refused(t, dir, out, 0, -EINVAL, "2 cannot be grouped into 0");
	refused(t, dir, out, 3, -EINVAL, "2 cannot be grouped into 3");
	refused(t, dir, cairn_tmpdir(t), 1, -EEXIST, "exists already");
	refused(t, "/nowhere/at/all", out, 1, -EIO, "config.json");
	refused(t, dir, "/nowhere/at/all", 1, -EIO, "/nowhere/at/all.part");
	snprintf(latent, sizeof(latent), "%s/serving/golden/deepseek_tiny", cairn_data_dir());
	refused(t, latent, out, 1, -EOPNOTSUPP, "latent attention");
	crafted_checkpoint(t, "float32", "I32", 0, crafted);
	refused(t, crafted, out, 1, -EOPNOTSUPP, "type I32 cannot be averaged");
	crafted_checkpoint(t, "float32", "F32", 0, crafted);
	if (!altered_config(t, crafted, "\"num_key_value_heads\":1", "\"num_key_value_heads\":2"))
		refused(t, crafted, out, 1, -EINVAL, "has 64 rows, not 128: 2 heads of 64");
}

/* Replaces `from` by `to`, of equal length, in the header of DIR/model.safetensors. */
static void rename_tensor(struct cairn_test *t, const char *dir, const char *from, const char *to)
{
	char path[PATH_MAX + 32], *bytes, *at;
	size_t n;

	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	if (!EXPECT(t, cairn_read_file(path, 1 << 24, &bytes, &n) == 0))
		return;
	at = memmem(bytes, n, from, strlen(from));
	if (EXPECT(t, at != NULL))
		memcpy(at, to, strlen(to));
	cairn_tmpfile(t, path, sizeof(path), "model.safetensors", bytes, n);
	free(bytes);
}

/* A checkpoint that does not load is an error, whichever part of it is broken. */
static void does_not_load(struct cairn_test *t)
{
	char dir[PATH_MAX], out[PATH_MAX], path[PATH_MAX + 32], large[2048], *at = large;

	out_dir(t, "none", out);
	crafted_checkpoint(t, "float32", "F32", 0, dir);
	cairn_tmpfile(t, path, sizeof(path), "tokenizer.json", "{\"x\": 1}", 8);
	refused(t, dir, out, 1, -EINVAL, "tokenizer.json: model");
	at += sprintf(at, "{\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {");
	for (int i = 0; i < 49; i++)
		at += sprintf(at, "%s\"%c\": %d", i ? ", " : "", '0' + i + (i >= 44), i);
	strcpy(at, "}}}");
	cairn_tmpfile(t, path, sizeof(path), "tokenizer.json", large, strlen(large));
	refused(t, dir, out, 1, -EINVAL, "tokenizer.json: has 49 tokens, vocab_size of config.json is 48");
	cairn_tmpfile(t, path, sizeof(path), "tokenizer.json", tokenizer, strlen(tokenizer));
	rename_tensor(t, dir, "model.layers.0.self_attn.q_proj.weight",
		      "model.layers.0.self_attn.q_proj.weighs");
	refused(t, dir, out, 1, -EINVAL, "\"model.layers.0.self_attn.q_proj.weight\" is missing");
	crafted_checkpoint(t, "float32", "F32", 0, dir);
	rename_tensor(t, dir, "model.norm.weight", "model.norm.weighs");
	refused(t, dir, out, 1, -EINVAL, "\"model.norm.weight\" is missing");
}

/* The leftovers of an interrupted conversion are replaced; a running conversion and other files are not. */
static void stale_part(struct cairn_test *t)
{
	char dir[PATH_MAX], out[PATH_MAX], part[PATH_MAX + 8], file[PATH_MAX + 64];
	int fd;
	FILE *f;

	crafted_checkpoint(t, "float32", "F32", 0, dir);
	out_dir(t, "again", out);
	snprintf(part, sizeof(part), "%s.part", out);
	snprintf(file, sizeof(file), "%s/model.safetensors", part);
	EXPECT(t, mkdir(part, 0777) == 0);
	f = fopen(file, "w");
	EXPECT(t, f && fputs("half", f) >= 0 && !fclose(f));
	fd = open(part, O_RDONLY | O_DIRECTORY);
	EXPECT(t, fd >= 0 && flock(fd, LOCK_EX) == 0);
	EXPECT(t, cairn_convert_gqa(dir, out, 1) == -EEXIST);
	EXPECT_CONTAINS(t, cairn_last_error(), "again.part: another conversion is writing it");
	EXPECT(t, access(file, F_OK) == 0);
	close(fd);
	if (!EXPECT(t, cairn_convert_gqa(dir, out, 1) == 0))
		cairn_note(t, "%s", cairn_last_error());
	EXPECT(t, access(part, F_OK) != 0 && cairn_model_verify(out) == 0);

	out_dir(t, "third", out);
	snprintf(part, sizeof(part), "%s.part", out);
	snprintf(file, sizeof(file), "%s/notes", part);
	EXPECT(t, mkdir(part, 0777) == 0);
	f = fopen(file, "w");
	EXPECT(t, f && !fclose(f));
	EXPECT(t, cairn_convert_gqa(dir, out, 1) == -EEXIST);
	EXPECT_CONTAINS(t, cairn_last_error(), "third.part: ");
	EXPECT(t, access(file, F_OK) == 0);
}

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(means), UNIT(equal_heads), UNIT(same_number), UNIT(refusals),
	UNIT(does_not_load), UNIT(stale_part),
};

const struct cairn_family cairn_convert_gqa_family = {
	.stage = "serving", .name = "convert_gqa", .units = units, .num_units = ARRAY_SIZE(units),
};
