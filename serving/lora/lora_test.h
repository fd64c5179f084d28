/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lora_test - writes adapters as PEFT does, and checkpoints with an adapter merged into the weights
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_LORA_TEST_H
#define CAIRN_LORA_TEST_H

#include <math.h>
#include <stdarg.h>
#include <sys/stat.h>

#include "serving/model/model_test.h"

#define LORA_MODULES	7

static const char *const lora_modules[LORA_MODULES] = {
	"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
	"mlp.up_proj", "mlp.down_proj",
};

/* An adapter with pseudo-random matrices. */
struct adapter_spec {
	const char *name;		/* also seeds its numbers */
	int rank;
	double alpha;
	int root_scaled;		/* use_rslora */
	unsigned modules;		/* bit i: it has lora_modules[i], in the layers of `layers` */
	unsigned layers;		/* bit i: layer i */
	float size;			/* deviation of its elements, roughly */
};

/* A safetensors file of F32 in memory. */
struct lora_file {
	char header[1 << 16];
	size_t at, bytes, room;
	char *data;
};

/* Adds a tensor, and returns its elements, valid until the next one is added. */
static inline float *lora_file_add(struct lora_file *f, const char *name, int rows, int cols)
{
	const size_t bytes = sizeof(float) * (size_t)rows * (size_t)(cols ? cols : 1);
	char shape[32];

	snprintf(shape, sizeof(shape), cols ? "%d,%d" : "%d", rows, cols);
	f->at += (size_t)snprintf(f->header + f->at, sizeof(f->header) - f->at,
				  "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
				  f->at ? ',' : '{', name, shape, f->bytes, f->bytes + bytes);
	if (f->bytes + bytes > f->room) {
		f->room = 2 * (f->bytes + bytes);
		f->data = realloc(f->data, f->room);
	}
	f->bytes += bytes;
	return (float *)(f->data + f->bytes - bytes);
}

/* Writes and frees the file. */
static inline void lora_file_write(struct cairn_test *t, struct lora_file *f, const char *path)
{
	FILE *out = fopen(path, "wb");
	uint64_t n;
	int ok;

	f->header[f->at++] = '}';
	while (f->at % 8)
		f->header[f->at++] = ' ';
	n = f->at;
	ok = out && fwrite(&n, 8, 1, out) == 1 && fwrite(f->header, f->at, 1, out) == 1 &&
	     fwrite(f->data, f->bytes, 1, out) == 1;
	if (out)
		ok &= fclose(out) == 0;
	EXPECT(t, ok && f->at < sizeof(f->header));
	free(f->data);
	*f = (struct lora_file){ .at = 0 };
}

/* Returns element i of tensor `name` of the adapter: exact in bf16. */
static inline float adapter_value(const struct adapter_spec *s, const char *name, int64_t i)
{
	char key[112];

	snprintf(key, sizeof(key), "%.12s/%.90s", s->name, name);
	return ((float)recipe_bits(recipe_hash(1, key), (uint64_t)i, 7) - 63.5f) / 37 * s->size;
}

static inline double adapter_scale(const struct adapter_spec *s)
{
	return s->alpha / (s->root_scaled ? sqrt(s->rank) : s->rank);
}

static inline void adapter_tensor(char *full, size_t len, int layer, int module, char which)
{
	snprintf(full, len, "base_model.model.model.layers.%d.%s.lora_%c.weight", layer, lora_modules[module],
		 which);
}

static inline int has_module(const struct adapter_spec *s, int layer, int module)
{
	return s->modules >> module & 1 && s->layers >> layer & 1;
}

/* Returns the sizes [out, in] of a matrix of a checkpoint. */
static inline void module_sizes(const struct cairn_safetensors *st, int layer, int module, int *out, int *in)
{
	const struct cairn_tensor *t;
	char name[128];

	snprintf(name, sizeof(name), "model.layers.%d.%s.weight", layer, lora_modules[module]);
	t = cairn_safetensors_find(st, name);
	*out = t ? (int)t->shape[0] : 0;
	*in = t ? (int)t->shape[1] : 0;
}

/* Writes adapter_config.json. more: further members, each with a comma before it. */
static inline void write_adapter_config(struct cairn_test *t, const struct adapter_spec *s, const char *dir,
					const char *more)
{
	char path[PATH_MAX + 64];
	FILE *f;

	mkdir(dir, 0777);
	snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
	f = fopen(path, "w");
	if (!EXPECT(t, f != NULL))
		return;
	fprintf(f, "{\"peft_type\":\"LORA\",\"r\":%d,\"lora_alpha\":%g,\"use_rslora\":%s,\"bias\":\"none\","
		"\"target_modules\":[\"q_proj\"],\"modules_to_save\":null,\"rank_pattern\":{}%s}", s->rank,
		s->alpha, s->root_scaled ? "true" : "false", more);
	fclose(f);
}

/* Writes the adapter for a checkpoint of `layers` layers to the directory s->name of the test's. */
static inline void write_adapter(struct cairn_test *t, const struct adapter_spec *s,
				 const struct cairn_safetensors *base, int layers, char *dir)
{
	struct lora_file f = { .at = 0 };
	char name[192], path[PATH_MAX + 64];

	snprintf(dir, PATH_MAX, "%s/%s", cairn_tmpdir(t), s->name);
	write_adapter_config(t, s, dir, "");
	for (int i = 0; i < layers * LORA_MODULES; i++) {
		int out, in, layer = i / LORA_MODULES, module = i % LORA_MODULES;

		if (!has_module(s, layer, module))
			continue;
		module_sizes(base, layer, module, &out, &in);
		for (int b = 0; b < 2; b++) {
			const int rows = b ? out : s->rank, cols = b ? s->rank : in;
			float *to;

			adapter_tensor(name, sizeof(name), layer, module, b ? 'B' : 'A');
			to = lora_file_add(&f, name, rows, cols);
			for (int k = 0; k < rows * cols; k++)
				to[k] = adapter_value(s, name, k);
		}
	}
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dir);
	lora_file_write(t, &f, path);
}

/* Adds scale B A to a matrix [out, in]. */
static inline void merge_module(const struct adapter_spec *s, int layer, int module, float *w, int out,
				int in)
{
	char a[192], b[192];

	adapter_tensor(a, sizeof(a), layer, module, 'A');
	adapter_tensor(b, sizeof(b), layer, module, 'B');
	for (int i = 0; i < out; i++)
		for (int j = 0; j < in; j++) {
			double sum = 0;

			for (int r = 0; r < s->rank; r++)
				sum += (double)adapter_value(s, b, i * s->rank + r) *
				       (double)adapter_value(s, a, r * in + j);
			w[(int64_t)i * in + j] += (float)(adapter_scale(s) * sum);
		}
}

/* Writes the checkpoint in F32 with the adapter merged into its weights to the directory `merged_NAME`. */
static inline void write_merged(struct cairn_test *t, const struct adapter_spec *s, const char *base_dir,
				const struct cairn_safetensors *base, char *dir)
{
	struct lora_file f = { .at = 0 };
	char path[PATH_MAX + 64], from[PATH_MAX + 64], name[128];

	snprintf(dir, PATH_MAX, "%s/merged_%s", cairn_tmpdir(t), s->name);
	mkdir(dir, 0777);
	snprintf(from, sizeof(from), "%s/config.json", base_dir);
	snprintf(path, sizeof(path), "%s/config.json", dir);
	EXPECT(t, symlink(from, path) == 0);
	for (size_t i = 0; i < cairn_safetensors_count(base); i++) {
		const struct cairn_tensor *x = cairn_safetensors_at(base, i);
		const int rows = (int)x->shape[0], cols = x->rank > 1 ? (int)x->shape[1] : 0;
		float *to = lora_file_add(&f, x->name, rows, cols);

		cairn_load_row(to, x->data, cairn_st_to_dtype(x->dtype), 0,
			       (int64_t)rows * (cols ? cols : 1));
		for (int m = 0; m < 64 * LORA_MODULES; m++) {
			if (!has_module(s, m / LORA_MODULES % 32, m % LORA_MODULES))
				continue;
			snprintf(name, sizeof(name), "model.layers.%d.%s.weight", m / LORA_MODULES,
				 lora_modules[m % LORA_MODULES]);
			if (!strcmp(name, x->name))
				merge_module(s, m / LORA_MODULES, m % LORA_MODULES, to, rows, cols);
		}
	}
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	lora_file_write(t, &f, path);
}

#endif
