// SPDX-License-Identifier: Apache-2.0
/* sha256_test - the examples of FIPS 180-2, in pieces of several lengths */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/sha256.h"

static void examples(struct cairn_test *t)
{
	char *million = malloc(1000000);
	const struct {
		const char *text, *hash;
		size_t bytes;
	} rows[] = {
		{ "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 0 },
		{ "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 3 },
		{ "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
		  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1", 56 },
		{ million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", 1000000 },
	};
	static const size_t pieces[] = { 1, 7, 64, 1000 };

	if (!EXPECT(t, million))
		return;
	memset(million, 'a', 1000000);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		for (size_t p = 0; p < ARRAY_SIZE(pieces); p++) {
			struct cairn_sha256 s;
			char hex[CAIRN_SHA256_HEX];

			cairn_sha256_begin(&s);
			for (size_t at = 0; at < rows[i].bytes; at += pieces[p])
				cairn_sha256_add(&s, rows[i].text + at, rows[i].bytes - at < pieces[p] ?
						 rows[i].bytes - at : pieces[p]);
			cairn_sha256_end(&s, hex);
			if (!EXPECT(t, !strcmp(hex, rows[i].hash)))
				cairn_note(t, "row %zu in pieces of %zu: %s", i, pieces[p], hex);
		}
	free(million);
}

static const struct cairn_unit units[] = { { "examples", examples } };

const struct cairn_family cairn_sha256_family = {
	.stage = "primitives", .name = "sha256", .units = units, .num_units = ARRAY_SIZE(units),
};
