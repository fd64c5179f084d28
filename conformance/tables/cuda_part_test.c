// SPDX-License-Identifier: Apache-2.0
/* cuda_part_test - a stream on some of the SMs computes the same, and takes longer */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/tables.h"

enum { BYTES = 256 << 20, SMS = 8, TURNS = 5 };

struct reader {
	struct cairn_impl impl;
	struct cairn_stream_args args;
	void *stream, *from, *to;
	uint64_t *sums;				/* [blocks], of the latest read */
	size_t sum_bytes;
};

static int open_reader(struct cairn_test *t, struct reader *r)
{
	const struct cairn_impl *impl = &r->impl;
	void *src, *sum;
	int ret;

	memset(r, 0, sizeof(*r));
	ret = cairn_impl_open("cuda", &r->impl);
	if (!ret)
		ret = cairn_impl_start(impl, 0);
	if (ret == -ENODEV) {
		cairn_skip(t, "%s", cairn_last_error());
		return ret;
	}
	r->args = (struct cairn_stream_args){ .size = sizeof(r->args), .bytes = BYTES, .seed = 3 };
	r->sum_bytes = (size_t)cairn_stream_num_blocks(BYTES) * sizeof(*r->sums);
	r->sums = malloc(r->sum_bytes);
	if (!EXPECT(t, !ret && r->sums && impl->stream_create(&r->stream) == 0 &&
		    impl->event_create(&r->from) == 0 && impl->event_create(&r->to) == 0 &&
		    impl->mem_alloc(&src, BYTES) == 0 && impl->mem_alloc(&sum, r->sum_bytes) == 0))
		return -EIO;
	r->args.op = CAIRN_STREAM_WRITE;
	r->args.dst = src;
	EXPECT(t, impl->stream(&r->args, r->stream) == 0 && impl->stream_sync(r->stream) == 0);
	r->args.op = CAIRN_STREAM_READ;
	r->args.src = src;
	r->args.sum = sum;
	return 0;
}

/* Reads on a stream of a part. Returns the shortest time in ms, or -1. */
static float read_on(struct cairn_test *t, struct reader *r, int32_t sms, int32_t priority)
{
	const struct cairn_impl *impl = &r->impl;
	float best = -1, ms;
	void *s;

	if (!EXPECT(t, impl->stream_create_part(&s, sms, priority) == 0))
		return -1;
	for (int i = 0; i < TURNS; i++) {
		EXPECT(t, impl->event_record(r->from, s) == 0 && impl->stream(&r->args, s) == 0 &&
			  impl->event_record(r->to, s) == 0 && impl->event_elapsed(&ms, r->from, r->to) == 0);
		best = best < 0 || ms < best ? ms : best;
	}
	EXPECT(t, impl->mem_copy(r->sums, r->args.sum, r->sum_bytes, CAIRN_COPY_TO_HOST, s) == 0 &&
		  impl->stream_sync(s) == 0);
	impl->stream_destroy(s);
	return best;
}

static void parts(struct cairn_test *t)
{
	float all, first, rest;
	struct reader r;
	uint64_t *want;

	if (open_reader(t, &r))
		return;
	all = read_on(t, &r, 0, 0);
	want = r.sums;
	r.sums = malloc(r.sum_bytes);
	if (!EXPECT(t, r.sums != NULL))
		return;
	first = read_on(t, &r, SMS, 0);
	EXPECT(t, !memcmp(r.sums, want, r.sum_bytes));
	rest = read_on(t, &r, -SMS, 1);
	EXPECT(t, !memcmp(r.sums, want, r.sum_bytes));
	cairn_note(t, "all SMs %.3f ms, %d SMs %.3f ms, the others %.3f ms", (double)all, SMS, (double)first,
		   (double)rest);
	EXPECT(t, first > 2 * all && rest < first / 2);
	/* streams of priority 1 on all SMs, and a second stream of a part that exists */
	EXPECT(t, read_on(t, &r, 0, 1) < first / 2 && read_on(t, &r, SMS, 1) > 2 * all);
	free(want);
	free(r.sums);
}

static void refused(struct cairn_test *t)
{
	struct reader r;
	void *s;

	if (open_reader(t, &r))
		return;
	EXPECT(t, r.impl.stream_create_part(&s, 0, 2) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "priority is 2");
	EXPECT(t, r.impl.stream_create_part(&s, 4096, 0) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "sms: 4096 of");
	EXPECT(t, r.impl.stream_create_part(&s, 17, 0) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "cannot be cut after 17 SMs");
	free(r.sums);
}

static const struct cairn_unit units[] = {
	{ "parts", parts },
	{ "refused", refused },
};

const struct cairn_family cairn_cuda_part_family = {
	.stage = "conformance", .name = "cuda_part", .units = units, .num_units = ARRAY_SIZE(units),
};
