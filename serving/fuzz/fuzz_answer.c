// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_answer - parses arbitrary bytes as a server's answer; the load generator's result must not depend on
 * the pieces in which they arrive
 */
#include <string.h>

#include "serving/bench/bench_serve.h"
#include "serving/fuzz/fuzz.h"

struct verdict {
	struct bench_request req;
	struct bench_samples itl;
	int complete, keep_alive;
};

static void take(struct verdict *v, const uint8_t *bytes, size_t size, size_t step, int flags)
{
	struct bench_answer a = {
		.itl = &v->itl, .count_tokens = flags & 1, .exact_length = flags & 2, .plain = flags & 4
	};
	size_t at = 0;

	memset(v, 0, sizeof(*v));
	v->req.max_tokens = 2;
	bench_answer_begin(&a, &v->req);
	while (at < size && !a.complete) {
		size_t n = step < size - at ? step : size - at;
		char *copy = malloc(n);

		memcpy(copy, bytes + at, n);
		bench_answer_push(&a, copy, n, 5);
		free(copy);
		at += n;
	}
	v->complete = a.complete;
	bench_answer_eof(&a, 9);
	v->keep_alive = a.keep_alive;
	FUZZ_HOLDS(a.complete && v->req.outcome != BENCH_UNSENT && v->req.outcome < BENCH_NUM_OUTCOMES);
	FUZZ_HOLDS(v->req.outcome == BENCH_OK || a.why[0] || v->req.outcome == BENCH_STATUS);
	FUZZ_HOLDS(v->req.outcome != BENCH_OK || (v->req.status == 200 && (a.plain || v->req.counted > 0)));
	bench_answer_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct verdict one, other;

	if (size < 2)
		return 0;
	take(&one, data + 2, size - 2, 1 + data[0] % 16, data[1]);
	take(&other, data + 2, size - 2, size, data[1]);
	FUZZ_HOLDS(one.req.outcome == other.req.outcome && one.req.status == other.req.status &&
		   one.req.counted == other.req.counted && one.req.output_tokens == other.req.output_tokens);
	FUZZ_HOLDS(one.complete == other.complete && one.itl.n == other.itl.n);
	free(one.itl.v);
	free(other.itl.v);
	return 0;
}
