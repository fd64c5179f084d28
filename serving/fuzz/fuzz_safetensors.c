// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_safetensors - opens arbitrary bytes as weights; every tensor of an accepted file must be inside it
 *
 * Input: a header, then the data, which starts with a NUL. Or a directory: '#', an index, then for each of
 * the files a, b, ... a NUL, one byte (the number of data bytes), a header, the data.
 */
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "serving/fuzz/fuzz.h"
#include "serving/model/checkpoint/safetensors.h"

#define MAX_SHARDS 4

static char folder[] = "/dev/shm/cairn-fuzz-XXXXXX";
static bool made_folder;

static void put_path(char *path, size_t len, int shard)
{
	if (shard < 0)
		snprintf(path, len, "%s/model.safetensors.index.json", folder);
	else
		snprintf(path, len, "%s/%c", folder, 'a' + shard);
}

static void remove_files(void)
{
	char path[64];

	for (int i = -1; i < MAX_SHARDS; i++) {
		put_path(path, sizeof(path), i);
		unlink(path);
	}
}

static void remove_folder(void)
{
	remove_files();
	rmdir(folder);
}

static void use(struct cairn_safetensors *st)
{
	volatile unsigned sum = 0;

	for (size_t i = 0; i < cairn_safetensors_count(st); i++) {
		const struct cairn_tensor *t = cairn_safetensors_at(st, i);

		FUZZ_HOLDS(cairn_safetensors_find(st, t->name) == t && t->rank <= CAIRN_SAFETENSORS_MAX_RANK);
		for (size_t k = 0; k < t->num_bytes; k++)
			sum += ((const uint8_t *)t->data)[k];
	}
	cairn_safetensors_close(st);
}

/* Prepends the header's length, so that every input can be a file. */
static uint8_t *make_file(const uint8_t *data, size_t size)
{
	uint64_t length = strnlen((const char *)data, size);
	uint8_t *file = malloc(size + 8);

	memcpy(file, &length, 8);
	memcpy(file + 8, data, size);
	return file;
}

static void write_file(int shard, const void *bytes, size_t size)
{
	char path[64];
	FILE *f;

	put_path(path, sizeof(path), shard);
	f = fopen(path, "wb");
	FUZZ_HOLDS(f && fwrite(bytes, 1, size, f) == size && !fclose(f));
}

static void make_folder(const uint8_t *at, const uint8_t *end)
{
	size_t n = strnlen((const char *)at, (size_t)(end - at));

	if (!made_folder) {
		FUZZ_HOLDS(mkdtemp(folder) && !atexit(remove_folder));
		made_folder = true;
	}
	remove_files();
	write_file(-1, at, n);
	at += n;
	for (int i = 0; i < MAX_SHARDS && end - at >= 2; i++) {
		size_t num_data = at[1], left = (size_t)(end - at) - 2;
		uint8_t *file;

		at += 2;
		n = strnlen((const char *)at, left) + num_data;
		n = n < left ? n : left;
		file = make_file(at, n);
		write_file(i, file, n + 8);
		free(file);
		at += n;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cairn_safetensors *st = NULL;
	uint8_t *file;

	if (size && data[0] == '#') {
		make_folder(data + 1, data + size);
		if (!cairn_safetensors_open(folder, &st))
			use(st);
		return 0;
	}
	file = make_file(data, size);
	if (!cairn_safetensors_open_mem(file, size + 8, "fuzz", &st))
		use(st);
	free(file);
	return 0;
}
