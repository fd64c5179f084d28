// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_pt2 - opens arbitrary bytes as an exported program, cuts it, and runs it whole and in slices
 *
 * Input: an archive, or with '{' as its first byte the JSON of a model, which is put into one together with a
 * small parameter. What can be cut passes the check; slices of a program that runs give its results.
 */
#include <string.h>

#include "serving/fuzz/fuzz.h"
#include "serving/pt2/pt2_run.h"

static void put_le(uint8_t **at, uint64_t value, int num)
{
	for (; num > 0; num--, value >>= 8)
		*(*at)++ = (uint8_t)value;
}

static uint32_t crc_of(const uint8_t *p, size_t n)
{
	uint32_t crc = ~0u;

	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int k = 0; k < 8; k++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	return ~crc;
}

struct member {
	const char *name;
	const void *data;
	size_t num_bytes;
};

/* Writes a header of the archive and the member's name; the data follow in front of the directory. */
static void put_header(uint8_t **at, const struct member *m, uint64_t magic, int skipped)
{
	put_le(at, magic, 4);
	put_le(at, 0, skipped);
	put_le(at, crc_of(m->data, m->num_bytes), 4);
	put_le(at, m->num_bytes, 4);
	put_le(at, m->num_bytes, 4);
	put_le(at, strlen(m->name), 4);
}

static void put_bytes(uint8_t **at, const void *bytes, size_t num)
{
	memcpy(*at, bytes, num);
	*at += num;
}

/* Makes an archive of the model and of one parameter, w, of 4 x 4 floats. */
static uint8_t *wrap(const uint8_t *data, size_t size, size_t *num_bytes)
{
	static const char config[] = "{\"config\": {\"w\": {\"path_name\": \"w\", \"use_pickle\": false, "
		"\"tensor_meta\": {\"sizes\": [{\"as_int\": 4}, {\"as_int\": 4}], "
		"\"strides\": [{\"as_int\": 4}, {\"as_int\": 1}], \"storage_offset\": {\"as_int\": 0}}}}}";
	static const float w[16] = { 1, 2, -1, 0.5f, 0, 1, 3, -2, 1, 1, 0, 0, -1, 2, 0.25f, 1 };
	const struct member m[] = {
		{ "models/m.json", data, size },
		{ "data/weights/m_weights_config.json", config, strlen(config) },
		{ "data/weights/w", w, sizeof(w) },
	};
	uint8_t *archive = malloc(size + 2048), *at = archive;
	size_t begin[3], directory, end;

	for (int i = 0; i < 3; i++) {
		begin[i] = (size_t)(at - archive);
		put_header(&at, &m[i], 0x04034b50, 10);
		put_bytes(&at, m[i].name, strlen(m[i].name));
		put_bytes(&at, m[i].data, m[i].num_bytes);
	}
	directory = (size_t)(at - archive);
	for (int i = 0; i < 3; i++) {
		put_header(&at, &m[i], 0x02014b50, 12);
		put_le(&at, 0, 10);
		put_le(&at, begin[i], 4);
		put_bytes(&at, m[i].name, strlen(m[i].name));
	}
	end = (size_t)(at - archive);
	put_le(&at, 0x06054b50, 4);
	put_le(&at, 0, 4);
	put_le(&at, 0x30003, 4);
	put_le(&at, end - directory, 4);
	put_le(&at, directory, 4);
	put_le(&at, 0, 2);
	*num_bytes = (size_t)(at - archive);
	return archive;
}

/* Runs small programs whose inputs are ids of one sequence. */
static void run(const struct cairn_pt2 *p, const struct cairn_pt2_slices *s)
{
	static double ids[64] = { 1, 2, 3 };
	struct cairn_pt2_tensor input = { .rank = 2, .size = { 1, 4 }, .num = 4, .data = ids };
	struct cairn_pt2_results whole, sliced;
	int64_t size[CAIRN_PT2_RANK], num, fitted[CAIRN_PT2_SYMBOLS];

	if (p->num_inputs != 1 || cairn_pt2_fit(p, &input, fitted))
		return;
	for (int32_t v = 0; v < p->num_values; v++)
		if (cairn_pt2_shape(p, v, fitted, size, &num) || num > 4096)
			return;
	if (cairn_pt2_run(&whole, p, NULL, &input, fitted))
		return;
	FUZZ_HOLDS(!cairn_pt2_run(&sliced, p, s, &input, fitted));
	for (int32_t i = 0; i < whole.num; i++)
		FUZZ_HOLDS(!memcmp(whole.outputs[i].data, sliced.outputs[i].data,
				   (size_t)whole.outputs[i].num * sizeof(double)));
	cairn_pt2_results_free(&sliced);
	cairn_pt2_results_free(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int64_t symbols[CAIRN_PT2_SYMBOLS];
	struct cairn_pt2_slices *s;
	struct cairn_pt2 *p;
	size_t num_bytes = size;
	uint8_t *archive = size && data[0] == '{' ? wrap(data, size, &num_bytes) : malloc(size + 1);

	if (num_bytes == size)
		memcpy(archive, data, size);
	if (!cairn_pt2_open_mem(&p, archive, num_bytes, "fuzz")) {
		cairn_pt2_symbols(p, symbols);
		if (!cairn_pt2_slices_create(&s, p, symbols)) {
			FUZZ_HOLDS(!cairn_pt2_slices_check(s, p));
			run(p, s);
			cairn_pt2_slices_destroy(s);
		}
		cairn_pt2_close(p);
	}
	free(archive);
	return 0;
}
