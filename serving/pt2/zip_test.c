// SPDX-License-Identifier: Apache-2.0
/* zip_test - archives are read as they were written; damaged ones are refused */
#include "conformance/harness.h"
#include "serving/pt2/pt2_test.h"

static const struct zip_member members[] = {
	{ "b/two", "second", 6 }, { "a/one", "first", 5 }, { "c", "", 0 },
};

static void judge(struct cairn_test *t, const struct archive *a)
{
	const struct cairn_zip_file *f;
	struct cairn_zip *z;

	if (!EXPECT(t, cairn_zip_open_mem(&z, a->bytes, a->num_bytes, "z") == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	EXPECT(t, cairn_zip_count(z) == 3 && !strcmp(cairn_zip_at(z, 0)->name, "a/one"));
	EXPECT(t, !cairn_zip_at(z, 3) && !cairn_zip_find(z, "a"));
	for (size_t i = 0; i < ARRAY_SIZE(members); i++) {
		f = cairn_zip_find(z, members[i].name);
		if (EXPECT(t, f && f->num_bytes == members[i].num_bytes))
			EXPECT(t, !memcmp(f->data, members[i].data, f->num_bytes) &&
			       cairn_zip_verify(z, f) == 0);
	}
	cairn_zip_close(z);
}

static void as_written(struct cairn_test *t)
{
	for (int wide = 0; wide < 2; wide++) {
		struct archive a = zip_make(members, ARRAY_SIZE(members), wide);

		judge(t, &a);
		zip_put_le(&a, 0, 0);
		free(a.bytes);
	}
}

/* A comment may contain what looks like an end of the directory. */
static void comment(struct cairn_test *t)
{
	static const char text[] = "PK\5\6 is not the end: PK\5\6";
	struct archive a = zip_make(members, ARRAY_SIZE(members), 0);

	a.bytes[a.num_bytes - 2] = sizeof(text);
	zip_put(&a, text, sizeof(text));
	judge(t, &a);
	free(a.bytes);
}

/* No prefix of an archive is one, and an archive with one changed byte is refused or has the same files. */
static void damaged(struct cairn_test *t)
{
	int refused = 0;

	for (int wide = 0; wide < 2; wide++) {
		struct archive a = zip_make(members, ARRAY_SIZE(members), wide);
		struct cairn_zip *z;

		for (size_t n = 0; n < a.num_bytes; n++) {
			uint8_t *copy = malloc(n + 1);	/* the sanitizer sees what is read behind it */

			memcpy(copy, a.bytes, n);
			EXPECT(t, cairn_zip_open_mem(&z, copy, n, "z") == -EINVAL);
			free(copy);
		}
		for (size_t i = 0; i < a.num_bytes; i++) {
			a.bytes[i] ^= 0x55;
			if (cairn_zip_open_mem(&z, a.bytes, a.num_bytes, "z")) {
				refused++;
			} else {
				for (size_t k = 0; k < cairn_zip_count(z); k++)
					refused += cairn_zip_verify(z, cairn_zip_at(z, k)) != 0;
				cairn_zip_close(z);
			}
			a.bytes[i] ^= 0x55;
		}
		free(a.bytes);
	}
	cairn_note(t, "%d changed bytes are noticed", refused);
	EXPECT(t, refused > 300);
}

static void refuse(struct cairn_test *t, const struct archive *a, const char *says)
{
	struct cairn_zip *z = NULL;

	EXPECT(t, cairn_zip_open_mem(&z, a->bytes, a->num_bytes, "z.pt2") == -EINVAL && !z);
	EXPECT_CONTAINS(t, cairn_last_error(), says);
}

static void refused(struct cairn_test *t)
{
	static const struct zip_member twice[] = { { "a", "1", 1 }, { "a", "2", 1 } };
	static const struct zip_member long_name[] = { { "a\n", "1", 1 } };
	struct archive a = zip_make(twice, 2, 0);
	struct cairn_zip *z;

	refuse(t, &a, "z.pt2: \"a\": is in the archive twice");
	free(a.bytes);
	a = zip_make(long_name, 1, 0);
	a.bytes[8] = 8;			/* only the directory counts */
	EXPECT(t, cairn_zip_open_mem(&z, a.bytes, a.num_bytes, "z.pt2") == 0);
	cairn_zip_close(z);
	a.bytes[a.num_bytes - 22 - 48 + 10] = 8;
	refuse(t, &a, "z.pt2: \"a\\x0a\": is compressed; PyTorch stores files as they are");
	a.bytes[a.num_bytes - 22 - 48 + 8] = 1;
	refuse(t, &a, "z.pt2: \"a\\x0a\": is encrypted");
	a.bytes[30] = 'b';
	a.bytes[a.num_bytes - 22 - 48 + 8] = a.bytes[a.num_bytes - 22 - 48 + 10] = 0;
	refuse(t, &a, "has another name in front of its data");
	free(a.bytes);
	EXPECT(t, cairn_zip_open(&z, "/no/such/file") == -EIO);
	EXPECT(t, cairn_zip_open(&z, "/dev/null") == -EINVAL);
}

static const struct cairn_unit units[] = {
	{ "as_written", as_written }, { "comment", comment }, { "damaged", damaged }, { "refused", refused },
};

const struct cairn_family cairn_zip_family = {
	.stage = "serving", .name = "zip", .units = units, .num_units = ARRAY_SIZE(units),
};
