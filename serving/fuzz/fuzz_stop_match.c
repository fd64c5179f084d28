// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_stop_match - matches stop strings in a text that arrives in pieces, and compares the result with a
 * search of the whole text
 *
 * Input: a byte for the number of strings, a byte for include; length and bytes of each string; then length
 * and bytes of each piece.
 */
#include <string.h>

#include "serving/fuzz/fuzz.h"
#include "serving/tokenizer/stop_match.h"

struct input {
	const uint8_t *at, *end;
};

static size_t take(struct input *in, size_t most, const char **bytes)
{
	size_t n = in->at < in->end ? *in->at++ % (most + 1) : 0;

	n = n < (size_t)(in->end - in->at) ? n : (size_t)(in->end - in->at);
	*bytes = (const char *)in->at;
	in->at += n;
	return n;
}

/* Returns where the text ends: before the first stop string that is complete or, with include, after it. */
static size_t search(const char *text, size_t len, const struct cairn_stop_string *stops, size_t num,
		     int include)
{
	for (size_t end = 1; end <= len; end++) {
		size_t longest = 0;

		for (size_t i = 0; i < num; i++)
			if (stops[i].num_bytes <= end && stops[i].num_bytes > longest &&
			    !memcmp(text + end - stops[i].num_bytes, stops[i].bytes, stops[i].num_bytes))
				longest = stops[i].num_bytes;
		if (longest)
			return include ? end : end - longest;
	}
	return len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, data + size };
	static char text[1 << 16], got[1 << 16];
	struct cairn_stop_string stops[CAIRN_MAX_STOPS];
	struct cairn_stop_set *set = NULL;
	struct cairn_stop_text out;
	struct cairn_stop_match m;
	size_t len = 0, num_got = 0, num, want;
	int include;

	if (size < 2 || size >= sizeof(text))
		return 0;
	num = 1 + data[0] % CAIRN_MAX_STOPS;
	include = data[1] & 1;
	in.at += 2;
	for (size_t i = 0; i < num; i++)
		stops[i].num_bytes = take(&in, 9, &stops[i].bytes);
	if (cairn_stop_set_new(stops, num, &set))
		return 0;
	cairn_stop_match_init(&m, set, include);
	while (in.at < in.end) {
		const char *piece;
		size_t n = take(&in, 7, &piece);

		memcpy(text + len, piece, n);
		len += n;
		out = cairn_stop_match_push(&m, piece, n);
		FUZZ_HOLDS(out.num_text <= n);
		memcpy(got + num_got, out.held, out.num_held);
		memcpy(got + num_got + out.num_held, piece, out.num_text);
		num_got += out.num_held + out.num_text;
	}
	out = cairn_stop_match_finish(&m);
	memcpy(got + num_got, out.held, out.num_held);
	num_got += out.num_held;
	want = search(text, len, stops, num, include);
	FUZZ_HOLDS(num_got == want && !memcmp(got, text, want));
	cairn_stop_set_free(set);
	return 0;
}
