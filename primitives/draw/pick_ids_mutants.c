// SPDX-License-Identifier: Apache-2.0
/* pick_ids_mutants - wrong versions of pick_ids, one defect each */
#include <math.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/draw/pick_ids.h"

enum pick_ids_bend {
	pick_ids_bend_zero_is_host, pick_ids_bend_row_for_from, pick_ids_bend_host_by_from,
	pick_ids_bend_beyond_reads_on, pick_ids_bend_beyond_is_host, pick_ids_bend_last_row_missing,
	pick_ids_bend_failed_draw_is_0, pick_ids_bend_from_of_16_bits, pick_ids_bend_rows_of_16_bits,
	pick_ids_bend_id_of_24_bits, pick_ids_bend_no_host_is_0_in_beyond,
	pick_ids_bend_int_min_is_0, pick_ids_bend_none_drawn_is_host,
};

static int bent_pick_ids(const struct cairn_pick_ids_args *a, enum pick_ids_bend bend)
{
	CAIRN_TRY(cairn_pick_ids_check(a));
	for (int32_t i = 0; i < a->rows - (bend == pick_ids_bend_last_row_missing); i++) {
		int32_t from = a->from[i], host = a->host_ids ? a->host_ids[i] : -1, id = host;

		if (bend == pick_ids_bend_host_by_from && a->host_ids && from > -a->rows && from < 0)
			id = a->host_ids[-1 - from];
		if (bend == pick_ids_bend_int_min_is_0 && from == INT32_MIN)
			from = 0;
		if (bend == pick_ids_bend_from_of_16_bits && from >= 0)
			from &= 0xffff;
		if (from >= (bend == pick_ids_bend_zero_is_host)) {
			id = bend == pick_ids_bend_beyond_is_host ? host : -1;
			if (from < a->num_drawn)
				id = a->drawn[from];
			if (bend == pick_ids_bend_row_for_from && i < a->num_drawn)
				id = a->drawn[i];
			if (bend == pick_ids_bend_beyond_reads_on && from >= a->num_drawn && a->num_drawn)
				id = a->drawn[a->num_drawn - 1];
		}
		if (bend == pick_ids_bend_none_drawn_is_host && !a->num_drawn)
			id = host;
		if (bend == pick_ids_bend_rows_of_16_bits && i >= 65536)
			continue;
		if (bend == pick_ids_bend_id_of_24_bits)
			id = (int32_t)fmin((double)(float)id, INT32_MAX);
		if (bend == pick_ids_bend_no_host_is_0_in_beyond && from >= a->num_drawn && !a->host_ids)
			id = 0;
		a->ids[i] = bend == pick_ids_bend_failed_draw_is_0 && id == -1 ? 0 : id;
	}
	return 0;
}

BENT(pick_ids, zero_is_host)
BENT(pick_ids, row_for_from)
BENT(pick_ids, host_by_from)
BENT(pick_ids, beyond_reads_on)
BENT(pick_ids, beyond_is_host)
BENT(pick_ids, last_row_missing)
BENT(pick_ids, failed_draw_is_0)
BENT(pick_ids, from_of_16_bits)
BENT(pick_ids, rows_of_16_bits)
BENT(pick_ids, id_of_24_bits)
BENT(pick_ids, no_host_is_0_in_beyond)
BENT(pick_ids, int_min_is_0)
BENT(pick_ids, none_drawn_is_host)

static int pick_ids_drawn_required(const struct cairn_pick_ids_args *a, void *stream)
{
	return a->rows && !a->drawn ? -EINVAL : cairn_pick_ids_ref(a, stream);
}

/* Keeps the ids for an address of `drawn` if the first one is the same. */
static int pick_ids_keeps_ids(const struct cairn_pick_ids_args *a, void *stream)
{
	static struct {
		const void *drawn;
		int32_t rows, ids[64];
	} kept;
	int same;

	CAIRN_TRY(cairn_pick_ids_ref(a, stream));
	if (!a->rows || a->rows > 64)
		return 0;
	same = kept.drawn == a->drawn && kept.rows == a->rows && kept.ids[0] == a->ids[0];
	kept.drawn = a->drawn;
	kept.rows = a->rows;
	for (int32_t i = 0; i < a->rows; i++)
		if (same)
			a->ids[i] = kept.ids[i];
		else
			kept.ids[i] = a->ids[i];
	return 0;
}

/* A last block of a single row, after more than 1024, gets the id of row 0. */
static int pick_ids_lone_last_row(const struct cairn_pick_ids_args *a, void *stream)
{
	CAIRN_TRY(cairn_pick_ids_ref(a, stream));
	if (a->rows > 1024 && a->rows % 256 == 1)
		a->ids[a->rows - 1] = a->ids[0];
	return 0;
}

/* Takes no token that is alone behind whole blocks of 64. */
static int pick_ids_lone_last_token(const struct cairn_pick_ids_args *a, void *stream)
{
	CAIRN_TRY(cairn_pick_ids_ref(a, stream));
	for (int32_t i = 0; a->num_drawn > 64 && a->num_drawn % 64 == 1 && i < a->rows; i++)
		if (a->from[i] == a->num_drawn - 1)
			a->ids[i] = -1;
	return 0;
}

const struct cairn_mutant cairn_pick_ids_mutants[] = {
	MUTANT_BARE(pick_ids, zero_is_host, "treats `from` 0 as none"),
	MUTANT_BARE(pick_ids, row_for_from, "gives row i draw i"),
	MUTANT_BARE(pick_ids, host_by_from, "uses a negative `from` as an index into the host's ids"),
	MUTANT_BARE(pick_ids, beyond_reads_on, "gives the last drawn token if `from` >= num_drawn"),
	MUTANT_BARE(pick_ids, beyond_is_host, "gives the host's id if `from` >= num_drawn"),
	MUTANT_BARE(pick_ids, last_row_missing, "writes rows - 1 rows"),
	MUTANT_BARE(pick_ids, failed_draw_is_0, "turns a failed draw into token 0"),
	MUTANT(pick_ids, from_of_16_bits, "takes `from` modulo 65536"),
	MUTANT(pick_ids, rows_of_16_bits, "writes the rows below 65536"),
	MUTANT(pick_ids, id_of_24_bits, "passes ids through fp32"),
	MUTANT(pick_ids, no_host_is_0_in_beyond,
	       "gives 0 instead of -1 for a row beyond num_drawn without host ids"),
	MUTANT(pick_ids, int_min_is_0, "drops the sign of the smallest `from`, which becomes 0"),
	MUTANT(pick_ids, none_drawn_is_host, "ignores `from` if num_drawn is 0"),
	MUTANT(pick_ids, keeps_ids, "keeps the ids for an address if the first one is the same"),
	MUTANT(pick_ids, drawn_required, "refuses NULL for `drawn` without drawn tokens"),
	{ "pick_ids_lone_last_row", offsetof(struct cairn_impl, pick_ids), (void *)pick_ids_lone_last_row,
	  "a single row past 1024 and whole blocks gets the first id" },
	{ "pick_ids_lone_last_token", offsetof(struct cairn_impl, pick_ids), (void *)pick_ids_lone_last_token,
	  "a token alone behind whole blocks counts as one beyond num_drawn" },
	{ 0 }
};
