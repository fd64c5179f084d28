// SPDX-License-Identifier: Apache-2.0
/*
 * journal_test - the journal holds what passes had in the table's memory
 *
 *   journal_device
 *	how fast it takes rows from the memory of a GPU, or of this machine if there is none, without workers:
 *	from the first pass until all rows are in their pages, whose memory was touched before; and the parts
 *	of it, the time in which the pass enqueues copies and that of the thread (0 with a GPU: there is none)
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/attention/journal_rig_test.h"

static void host(struct cairn_test *t)
{
	EXPECT(t, !journal_differs(t, "cpu"));
}

static void late(struct cairn_test *t)
{
	EXPECT(t, !journal_differs(t, "late"));
}

static void cuda(struct cairn_test *t)
{
	EXPECT(t, !journal_differs(t, "cuda"));
}

static int has_device(struct cairn_impl *impl)
{
	int has = !cairn_impl_open("cuda", impl) && !cairn_impl_start(impl, 0);

	cairn_clear_error();
	return has;
}

/* 8 layers with 8 KV heads of 128 elements, in passes of 512 rows whose K and V lie side by side. */
static void journal_device(struct cairn_test *t)
{
	enum { ROWS = 512, NUM = 512, SIZE = 16, DEEP = 8, WIDE = 8 * 128, BATCH = ROWS / SIZE };
	const struct cairn_remote_limits limits = { ROWS, ROWS, NUM * SIZE, NUM, SIZE, 1, 0 };
	struct cairn_attn_rows rows = { .num_rows = ROWS, .kv_stride = 2 * WIDE };
	int32_t indptr[BATCH + 1], qo[BATCH + 1], pages[BATCH], last[BATCH];
	const struct cairn_remote_pass p = {
		.num_rows = ROWS, .batch = BATCH, .num_pages = BATCH, .qo_indptr = qo, .kv_indptr = indptr,
		.last_page_len = last, .kv_indices = pages,
	};
	struct journal_rig *b = malloc(sizeof(*b));
	struct cairn_journal_stats s;
	int64_t begin = 0, end;

	if (!EXPECT(t, b != NULL) ||
	    open_journal(t, b, has_device(&b->impl) ? "cuda" : "cpu", &limits, 8, 128, DEEP))
		goto out;
	rows.k = b->dev;
	rows.v = b->dev + WIDE;
	for (int32_t k = 0; k < 2 * NUM / BATCH; k++) {	/* the first half only touches the memory */
		for (int32_t i = 0; i <= BATCH; i++) {
			indptr[i] = i;
			qo[i] = i * SIZE;
			if (i < BATCH) {
				pages[i] = (k * BATCH + i) % NUM;
				last[i] = SIZE;
			}
		}
		if (k == NUM / BATCH)
			EXPECT(t, cairn_journal_drain(b->j) == 0);
		begin = k == NUM / BATCH ? cairn_clock_ns() : begin;
		EXPECT(t, cairn_journal_begin(b->j, 0, &p) == 0);
		for (rows.layer = 0; rows.layer < DEEP; rows.layer++)
			EXPECT(t, cairn_journal_rows(b->j, 0, &rows, b->stream) == 0);
		EXPECT(t, cairn_journal_commit(b->j, 0, b->stream) == 0);
	}
	EXPECT(t, cairn_journal_drain(b->j) == 0);
	end = cairn_clock_ns();
	cairn_journal_stats(b->j, &s);
	cairn_host_row(t, "journal_device", b->impl.name, "\"bytes\":%lld,\"gb_per_s\":%.2f,"
		       "\"enqueued_gb_per_s\":%.2f,\"write_gb_per_s\":%.2f", (long long)(s.bytes / 2),
		       (double)s.bytes / 2 / (double)(end - begin), (double)s.bytes / (double)s.record_ns,
		       s.write_ns ? (double)s.bytes / (double)s.write_ns : 0);
	close_journal(b);
out:
	free(b);
}

static const struct cairn_unit units[] = {
	{ "host", host }, { "late", late }, { "cuda", cuda },
};

static const struct cairn_unit measures[] = {
	{ "journal_device", journal_device },
};

const struct cairn_family cairn_journal_family = {
	.stage = "serving", .name = "journal", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
};
