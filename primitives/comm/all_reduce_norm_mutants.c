// SPDX-License-Identifier: Apache-2.0
/*
 * all_reduce_norm_mutants - wrong versions of all_reduce_norm, one defect each
 *
 * Half of them compute wrong numbers, as in rmsnorm_mutants.c; the others exchange messages wrongly. If a
 * defect shows only with a certain timing of the ranks, its mutant sleeps at that point to force the timing.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/nudge.h"
#include "primitives/comm/all_reduce_norm.h"
#include "primitives/comm/comm_host.h"

enum all_reduce_norm_bend {
	/* numbers */
	all_reduce_norm_bend_own_first, all_reduce_norm_bend_residual_n_times,
	all_reduce_norm_bend_residual_at_rank_0, all_reduce_norm_bend_sum_in_dtype,
	all_reduce_norm_bend_rounded_before_residual, all_reduce_norm_bend_own_shard,
	all_reduce_norm_bend_last_rank_lost, all_reduce_norm_bend_tail_of_last_rank_lost,
	all_reduce_norm_bend_own_twice, all_reduce_norm_bend_residual_not_written,
	all_reduce_norm_bend_squares_before_rounding, all_reduce_norm_bend_offset_ignored,
	all_reduce_norm_bend_eps_outside_root, all_reduce_norm_bend_mean_over_ranks,
	all_reduce_norm_bend_nan_is_0, all_reduce_norm_bend_cut_off, all_reduce_norm_bend_past_the_end,
	all_reduce_norm_bend_eighth_rank_lost,
	/* messages */
	all_reduce_norm_bend_old_mailbox, all_reduce_norm_bend_flag_before_payload,
	all_reduce_norm_bend_number_wraps, all_reduce_norm_bend_no_wait, all_reduce_norm_bend_one_mailbox,
	all_reduce_norm_bend_impatient, all_reduce_norm_bend_timeout_is_success,
	all_reduce_norm_bend_other_error, all_reduce_norm_bend_first_round_again,
	all_reduce_norm_bend_last_rank_not_awaited, all_reduce_norm_bend_rank_mixed_up,
	all_reduce_norm_bend_flag_before_end, all_reduce_norm_bend_flag_before_last_row,
	all_reduce_norm_bend_mean_of_whole_vectors_bf16, all_reduce_norm_bend_sum_in_16_bits,
	all_reduce_norm_bend_sum_saturates,
};
#define IS(defect)	(bend == all_reduce_norm_bend_##defect)

/* ---- numbers ---- */

/* Returns the sum of element k: of the ranks and the residual. */
static double bent_term(const struct cairn_all_reduce_norm_args *a, enum all_reduce_norm_bend bend,
			const void *const *mail, int64_t at, int64_t k, double residual)
{
	const int32_t n = a->comm.ranks;
	float sum = 0;

	for (int32_t i = 0; i < n; i++) {
		int32_t r = IS(own_first) ? (a->comm.rank + i) % n : i;
		double x = cairn_load(mail[r], a->dtype, at);

		if (IS(nan_is_0) && isnan(x))
			x = 0;
		if (IS(own_twice) && r == a->comm.rank && n > 1)
			x *= 2;
		if ((IS(last_rank_lost) && n > 1 && r == n - 1) || (IS(eighth_rank_lost) && r == 7) ||
		    (IS(tail_of_last_rank_lost) && n > 1 && r == n - 1 && k % a->dim >= a->dim / 64 * 64))
			continue;
		sum = i ? sum + (float)x : (float)x;
		if (IS(sum_in_dtype))
			sum = (float)rounded(a->dtype, sum);
		if (IS(sum_in_16_bits) && a->dtype == CAIRN_BF16) {
			uint32_t bits;

			memcpy(&bits, &sum, sizeof(bits));
			bits &= 0xffffff00;
			memcpy(&sum, &bits, sizeof(sum));
		}
	}
	if (!a->residual || (IS(residual_at_rank_0) && a->comm.rank))
		return sum;
	if (IS(rounded_before_residual))
		sum = (float)rounded(a->dtype, sum);
	return sum + (float)(IS(residual_n_times) ? residual * n : residual);
}

static void bent_row(const struct cairn_all_reduce_norm_args *a, enum all_reduce_norm_bend bend,
		     const void *const *mail, int32_t i, int32_t row, double *t)
{
	const int32_t shard = a->dim / a->comm.ranks;
	double squares = 0, s;

	for (int32_t j = 0; j < a->dim; j++) {
		int64_t k = (int64_t)row * a->dim + j;
		double sum = bent_term(a, bend, mail, (int64_t)i * a->dim + j, k,
				       a->residual ? cairn_load(a->residual, a->dtype, k) : 0);

		t[j] = rounded(a->dtype, IS(sum_saturates) ? saturated(a->dtype, sum) : sum);
		if (a->residual && !IS(residual_not_written))
			cairn_store(a->residual, a->dtype, k, t[j]);
		if (IS(squares_before_rounding))
			t[j] = sum;
		if (!IS(own_shard) || j / shard == a->comm.rank)
			squares += t[j] * t[j];
	}
	squares /= IS(own_shard) ? shard : a->dim;
	if (IS(mean_of_whole_vectors_bf16) && a->dim > 8192 && a->dtype == CAIRN_BF16)
		squares *= a->dim / ((a->dim + 15) / 16 * 16.0);
	if (IS(mean_over_ranks))
		squares /= a->comm.ranks;
	s = IS(eps_outside_root) ? 1 / (sqrt(squares) + (double)a->eps) : 1 / sqrt(squares + (double)a->eps);
	for (int32_t j = 0; j < a->dim; j++) {
		double w = cairn_load(a->weight, a->dtype, j) +
			   (IS(offset_ignored) ? 0 : (double)a->weight_offset), v = t[j] * s * w;

		cairn_store(a->out, a->dtype, (int64_t)row * a->dim + j,
			    IS(cut_off) ? cut_off(a->dtype, v) : v);
	}
}

/* ---- messages ---- */

/* Sends this rank's rows of the round. */
static void bent_send(const struct cairn_all_reduce_norm_args *a, enum all_reduce_norm_bend bend,
		      int32_t first, size_t bytes, void *mine)
{
	const size_t row = (size_t)a->dim * cairn_dtype_bytes(a->dtype);
	struct comm_host *h = a->comm.handle;
	const char *x;
	size_t late;

	if (IS(one_mailbox))
		mine = comm_host_mail(h, h->rank, 0);
	if (IS(flag_before_payload)) {
		comm_host_post(&a->comm);
		usleep(300);
	}
	late = IS(flag_before_end) ? 16 : IS(flag_before_last_row) ? row : 0;
	x = (const char *)a->x + (IS(first_round_again) ? 0 : (size_t)first * row);
	memcpy(mine, x, bytes - late);
	if (!IS(flag_before_payload))
		comm_host_post(&a->comm);
	memcpy((char *)mine + bytes - late, x + bytes - late, late);
	if (IS(one_mailbox) && h->rank == 0)
		usleep(300);
}

/* Sets *mail to the rows of rank r. */
static int bent_await(const struct cairn_all_reduce_norm_args *a, enum all_reduce_norm_bend bend, int32_t r,
		      const void **mail)
{
	struct comm_host *h = a->comm.handle;
	_Atomic uint32_t *posted = &h->segment[r]->posted;
	int last = r == a->comm.ranks - 1, ret = 0;

	*mail = comm_host_mail(h, r, h->number);
	if (IS(no_wait) || (IS(last_rank_not_awaited) && last))
		return 0;
	if (IS(number_wraps) && atomic_load(posted) >= h->number)
		return 0;
	for (int i = 0; IS(impatient) && i < 10; i++) {
		if ((int32_t)(atomic_load(posted) - h->number) >= 0)
			break;
		usleep(20);
		if (i == 9)
			return 0;
	}
	ret = comm_host_await(&a->comm, r, "all_reduce_norm", mail);
	if (IS(old_mailbox))
		*mail = comm_host_mail(h, r, h->number - 1);
	if (IS(one_mailbox))
		*mail = comm_host_mail(h, r, 0);
	if (IS(timeout_is_success) && ret == -ETIMEDOUT) {
		atomic_store(&h->error, 0);
		return 0;
	}
	return IS(other_error) && ret ? -EIO : ret;
}

static int bent_round(const struct cairn_all_reduce_norm_args *a, enum all_reduce_norm_bend bend,
		      int32_t first, int32_t rows)
{
	const void *mail[CAIRN_COMM_MAX_RANKS], *swapped;
	double *t = malloc((size_t)a->dim * sizeof(*t));
	int32_t n = a->comm.ranks;
	void *mine;
	int ret = t ? comm_host_begin(&a->comm, "all_reduce_norm", &mine) : -ENOMEM;

	if (!ret)
		bent_send(a, bend, first, (size_t)rows * (size_t)a->dim * cairn_dtype_bytes(a->dtype), mine);
	for (int32_t r = 0; r < n && !ret; r++) {
		mail[r] = IS(one_mailbox) ? comm_host_mail(a->comm.handle, r, 0) : mine;
		if (r != a->comm.rank)
			ret = bent_await(a, bend, r, &mail[r]);
	}
	if (!ret && IS(rank_mixed_up) && n > 2 && a->comm.rank == 0) {
		swapped = mail[1];
		mail[1] = mail[2];
		mail[2] = swapped;
	}
	for (int32_t i = 0; i < rows && !ret; i++)
		bent_row(a, bend, mail, i, first + i, t);
	free(t);
	return ret;
}

static int bent_all_reduce_norm(const struct cairn_all_reduce_norm_args *a, enum all_reduce_norm_bend bend)
{
	int32_t most;

	CAIRN_TRY(cairn_all_reduce_norm_check(a));
	most = (int32_t)(COMM_HOST_MAIL / ((size_t)a->dim * cairn_dtype_bytes(a->dtype)));
	for (int32_t first = 0; first < a->rows; first += most)
		CAIRN_TRY(bent_round(a, bend, first, a->rows - first < most ? a->rows - first : most));
	if (IS(past_the_end) && a->rows)
		cairn_store(a->out, a->dtype, (int64_t)a->rows * a->dim, 1);
	return 0;
}

BENT(all_reduce_norm, own_first)
BENT(all_reduce_norm, residual_n_times)
BENT(all_reduce_norm, residual_at_rank_0)
BENT(all_reduce_norm, sum_in_dtype)
BENT(all_reduce_norm, sum_in_16_bits)
BENT(all_reduce_norm, sum_saturates)
BENT(all_reduce_norm, rounded_before_residual)
BENT(all_reduce_norm, own_shard)
BENT(all_reduce_norm, last_rank_lost)
BENT(all_reduce_norm, tail_of_last_rank_lost)
BENT(all_reduce_norm, own_twice)
BENT(all_reduce_norm, residual_not_written)
BENT(all_reduce_norm, squares_before_rounding)
BENT(all_reduce_norm, offset_ignored)
BENT(all_reduce_norm, eps_outside_root)
BENT(all_reduce_norm, mean_over_ranks)
BENT(all_reduce_norm, nan_is_0)
BENT(all_reduce_norm, cut_off)
BENT(all_reduce_norm, past_the_end)
BENT(all_reduce_norm, eighth_rank_lost)
BENT(all_reduce_norm, old_mailbox)
BENT(all_reduce_norm, flag_before_payload)
BENT(all_reduce_norm, number_wraps)
BENT(all_reduce_norm, no_wait)
BENT(all_reduce_norm, one_mailbox)
BENT(all_reduce_norm, impatient)
BENT(all_reduce_norm, timeout_is_success)
BENT(all_reduce_norm, other_error)
BENT(all_reduce_norm, first_round_again)
BENT(all_reduce_norm, last_rank_not_awaited)
BENT(all_reduce_norm, rank_mixed_up)
BENT(all_reduce_norm, flag_before_end)
BENT(all_reduce_norm, mean_of_whole_vectors_bf16)
BENT(all_reduce_norm, flag_before_last_row)

/* If there are few rows, sums in another order, which changes the last bit. */
static int all_reduce_norm_few_rows(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	CAIRN_TRY(cairn_all_reduce_norm_ref(a, stream));
	if (a->dtype == CAIRN_F32 && a->rows > 0 && a->rows < 4)
		nudge(a->out, a->dim);
	return 0;
}

/* The last rank computes with another order of its threads, which changes the last bit. */
static int all_reduce_norm_ranks_differ(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	CAIRN_TRY(cairn_all_reduce_norm_ref(a, stream));
	if (a->dtype == CAIRN_F32 && a->comm.ranks > 1 && a->comm.rank == a->comm.ranks - 1 && a->rows)
		nudge(a->out, a->dim);
	return 0;
}

/* Writes out before x, which may be the same, is sent. */
static int all_reduce_norm_in_place(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	if (!cairn_all_reduce_norm_check(a) && a->out == a->x && a->rows)
		cairn_store(a->out, a->dtype, a->dim - 1, 0);
	return cairn_all_reduce_norm_ref(a, stream);
}

static int all_reduce_norm_any_rank(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	const struct comm_host *h = a->comm.handle;
	struct cairn_all_reduce_norm_args other;

	CAIRN_TRY(cairn_all_reduce_norm_check(a));
	other = *a;
	other.size = sizeof(other);
	other.comm.rank = h->rank;
	other.comm.ranks = h->ranks;
	return cairn_all_reduce_norm_ref(&other, stream);
}

/* Among three ranks, a single row behind whole tiles of 16 loses its last element. */
static int all_reduce_norm_lone_last_row(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	CAIRN_TRY(cairn_all_reduce_norm_ref(a, stream));
	if (a->rows > 16 && a->rows % 16 == 1 && a->comm.ranks == 3)
		cairn_store(a->out, a->dtype, (int64_t)a->rows * a->dim - 1, 0);
	return 0;
}

/* Among more than four ranks, row 16 loses its first element. */
static int all_reduce_norm_row_17_of_many_ranks(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	CAIRN_TRY(cairn_all_reduce_norm_ref(a, stream));
	if (a->rows > 16 && a->comm.ranks > 4)
		cairn_store(a->out, a->dtype, (int64_t)16 * a->dim, 0);
	return 0;
}

/* Rows of bf16 that end 120 elements behind whole 128 lose their last element. */
static int all_reduce_norm_dim_120(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	CAIRN_TRY(cairn_all_reduce_norm_ref(a, stream));
	for (int64_t i = 0; a->dtype == CAIRN_BF16 && a->dim % 128 == 120 && i < a->rows; i++)
		cairn_store(a->out, a->dtype, (i + 1) * a->dim - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_all_reduce_norm_mutants[] = {
	MUTANT(all_reduce_norm, own_first, "sums from its own rank on, so that ranks get other bits"),
	MUTANT(all_reduce_norm, residual_n_times, "adds the residual once for each rank"),
	MUTANT(all_reduce_norm, residual_at_rank_0, "adds the residual on rank 0 alone"),
	MUTANT(all_reduce_norm, sum_in_dtype, "rounds the sum to dtype after each rank"),
	MUTANT(all_reduce_norm, sum_in_16_bits, "cuts the sum of bf16 to 16 bits after each rank"),
	MUTANT(all_reduce_norm, sum_saturates, "stores a finite sum where it overflows f16 or bf16"),
	MUTANT(all_reduce_norm, rounded_before_residual, "rounds the sum to dtype before the residual"),
	MUTANT(all_reduce_norm, own_shard, "takes the mean over its own share of the columns"),
	MUTANT(all_reduce_norm, last_rank_lost, "leaves the last rank out"),
	MUTANT(all_reduce_norm, tail_of_last_rank_lost,
	       "leaves the last rank out past the last multiple of 64 columns"),
	MUTANT(all_reduce_norm, eighth_rank_lost, "sums at most seven ranks"),
	MUTANT(all_reduce_norm, own_twice, "adds its own part twice"),
	MUTANT(all_reduce_norm, residual_not_written, "does not store the new residual"),
	MUTANT(all_reduce_norm, squares_before_rounding, "normalises the sum before it is rounded to dtype"),
	MUTANT(all_reduce_norm, offset_ignored, "omits weight_offset"),
	MUTANT(all_reduce_norm, eps_outside_root, "adds eps to the root instead of under it"),
	MUTANT(all_reduce_norm, mean_over_ranks, "divides the mean by the number of ranks"),
	MUTANT(all_reduce_norm, mean_of_whole_vectors_bf16,
	       "takes the mean of the longest rows of bf16 over a multiple of 16"),
	MUTANT(all_reduce_norm, nan_is_0, "treats a NaN of a rank as 0"),
	MUTANT(all_reduce_norm, cut_off, "cuts the result off instead of rounding it"),
	MUTANT(all_reduce_norm, past_the_end, "writes one element past the last row"),
	MUTANT(all_reduce_norm, few_rows, "sums in another order if there are fewer than 4 rows"),
	MUTANT(all_reduce_norm, ranks_differ, "gives other bits on the last rank"),
	MUTANT(all_reduce_norm, in_place, "writes out before x, which may be the same, is sent"),
	MUTANT(all_reduce_norm, any_rank, "ignores that the communicator is another rank's"),
	MUTANT(all_reduce_norm, old_mailbox, "reads the mailbox of the call before"),
	MUTANT(all_reduce_norm, flag_before_payload, "posts a message before it is written"),
	MUTANT(all_reduce_norm, flag_before_end, "posts a message before its last 16 bytes are written"),
	MUTANT(all_reduce_norm, flag_before_last_row, "posts a message before its last row is written"),
	MUTANT(all_reduce_norm, number_wraps, "compares numbers of calls as if they did not wrap around"),
	MUTANT(all_reduce_norm, no_wait, "does not wait for messages"),
	MUTANT(all_reduce_norm, last_rank_not_awaited, "does not wait for the last rank"),
	MUTANT(all_reduce_norm, one_mailbox, "overwrites a mailbox that others still read"),
	MUTANT(all_reduce_norm, impatient, "goes on without a rank that is late"),
	MUTANT(all_reduce_norm, timeout_is_success, "ends without an error if a rank does not come"),
	MUTANT(all_reduce_norm, other_error, "returns -EIO instead of the reason"),
	MUTANT(all_reduce_norm, first_round_again, "sends the first rows again in later rounds"),
	MUTANT(all_reduce_norm, rank_mixed_up, "takes rank 2's message for rank 1's on rank 0"),
	{ "all_reduce_norm_lone_last_row", offsetof(struct cairn_impl, all_reduce_norm),
	  (void *)all_reduce_norm_lone_last_row,
	  "among three ranks, a single row past whole tiles loses its last element" },
	{ "all_reduce_norm_row_17_of_many_ranks", offsetof(struct cairn_impl, all_reduce_norm),
	  (void *)all_reduce_norm_row_17_of_many_ranks,
	  "among more than four ranks, the row past the first tile is wrong" },
	{ "all_reduce_norm_dim_120", offsetof(struct cairn_impl, all_reduce_norm),
	  (void *)all_reduce_norm_dim_120,
	  "rows of bf16 that are 8 short of whole 128 lose their last element" },
	{ 0 }
};
