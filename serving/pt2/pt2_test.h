/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt2_test - archives and changed programs for the tests of this folder
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_PT2_TEST_H
#define CAIRN_PT2_TEST_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/program.h"
#include "serving/base/json.h"
#include "serving/pt2/pt2_expect.h"
#include "serving/pt2/zip.h"

struct zip_member {
	const char *name;
	const void *data;
	size_t num_bytes;
};

struct archive {
	uint8_t *bytes;
	size_t num_bytes, room;
};

static inline void zip_put(struct archive *a, const void *bytes, size_t num)
{
	if (a->num_bytes + num > a->room) {
		a->room = 2 * (a->num_bytes + num);
		a->bytes = realloc(a->bytes, a->room);
	}
	if (num)
		memcpy(a->bytes + a->num_bytes, bytes, num);
	a->num_bytes += num;
}

static inline void zip_put_le(struct archive *a, uint64_t value, int num)
{
	for (; num > 0; num--, value >>= 8) {
		uint8_t byte = (uint8_t)value;

		zip_put(a, &byte, 1);
	}
}

static inline uint32_t zip_crc(const uint8_t *p, size_t n)
{
	uint32_t crc = ~0u;

	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int k = 0; k < 8; k++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	return ~crc;
}

/* Writes an archive of stored files, with zip64 fields if `wide`. The caller frees its bytes. */
static inline struct archive zip_make(const struct zip_member *m, size_t num, int wide)
{
	struct archive a = { 0 };
	size_t *at = calloc(num + 1, sizeof(*at)), directory, end;

	for (size_t i = 0; i < num; i++) {
		at[i] = a.num_bytes;
		zip_put_le(&a, 0x04034b50, 4);
		zip_put_le(&a, 0, 10);		/* version, flags, method, time, date */
		zip_put_le(&a, zip_crc(m[i].data, m[i].num_bytes), 4);
		zip_put_le(&a, m[i].num_bytes, 4);
		zip_put_le(&a, m[i].num_bytes, 4);
		zip_put_le(&a, strlen(m[i].name), 2);
		zip_put_le(&a, 5, 2);		/* an extra field, which alignment uses */
		zip_put(&a, m[i].name, strlen(m[i].name));
		zip_put(&a, "FB\1\0Z", 5);
		zip_put(&a, m[i].data, m[i].num_bytes);
	}
	directory = a.num_bytes;
	for (size_t i = 0; i < num; i++) {
		zip_put_le(&a, 0x02014b50, 4);
		zip_put_le(&a, 0, 12);		/* versions, flags, method, time, date */
		zip_put_le(&a, zip_crc(m[i].data, m[i].num_bytes), 4);
		zip_put_le(&a, wide ? 0xffffffff : m[i].num_bytes, 4);
		zip_put_le(&a, wide ? 0xffffffff : m[i].num_bytes, 4);
		zip_put_le(&a, strlen(m[i].name), 2);
		zip_put_le(&a, wide ? 28 : 0, 2);
		zip_put_le(&a, 0, 2);		/* comment */
		zip_put_le(&a, 0, 8);		/* disk, attributes */
		zip_put_le(&a, wide ? 0xffffffff : at[i], 4);
		zip_put(&a, m[i].name, strlen(m[i].name));
		for (int k = 0; wide && k < 4; k++)
			zip_put_le(&a, k == 0 ? 0x00180001 : k == 3 ? at[i] : m[i].num_bytes, k ? 8 : 4);
	}
	end = a.num_bytes;
	if (wide) {
		zip_put_le(&a, 0x06064b50, 4);
		zip_put_le(&a, 44, 8);
		zip_put_le(&a, 0, 12);		/* versions and disks */
		zip_put_le(&a, num, 8);
		zip_put_le(&a, num, 8);
		zip_put_le(&a, end - directory, 8);
		zip_put_le(&a, directory, 8);
		zip_put_le(&a, 0x07064b50, 4);
		zip_put_le(&a, 0, 4);
		zip_put_le(&a, end, 8);
		zip_put_le(&a, 1, 4);
	}
	zip_put_le(&a, 0x06054b50, 4);
	zip_put_le(&a, 0, 4);
	zip_put_le(&a, wide ? 0xffff : num, 2);
	zip_put_le(&a, wide ? 0xffff : num, 2);
	zip_put_le(&a, wide ? 0xffffffff : end - directory, 4);
	zip_put_le(&a, wide ? 0xffffffff : directory, 4);
	zip_put_le(&a, 0, 2);
	free(at);
	return a;
}

static inline void golden_pt2(char path[PATH_MAX], const char *file)
{
	snprintf(path, PATH_MAX, "%s/serving/golden/pt2/%s", cairn_data_dir(), file);
}

/* Returns the JSON of the golden program. */
static inline json_t *golden_json(struct cairn_test *t, struct cairn_zip *z)
{
	const struct cairn_zip_file *f = cairn_zip_find(z, "mixed/models/mixed.json");
	json_t *root = NULL;

	if (!f)
		f = cairn_zip_find(z, "mixed/models/model.json");
	EXPECT(t, f && cairn_json_parse(f->data, f->num_bytes, "mixed", false, &root) == 0);
	return root;
}

#endif
