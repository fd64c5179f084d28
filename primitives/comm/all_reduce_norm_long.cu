/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_norm_long.cu - one-shot for long calls: bulk copies move rows, through boxes (comm_device.h)
 *
 * Schedule: one CTA per SM; CTAs take rows in turn. One thread sends: it loads this rank's rows into shared
 * memory, copies each to the box of every peer by bulk copies, waits until these are complete, and then sets
 * the row's flag at the peers. The row stays in shared memory for this rank's own sum. Another thread
 * receives: it loads the residual's rows, waits for the flags, and loads the peers' rows from the boxes. The
 * other warps sum in rank order, add the residual, round and normalise. They write the results over the first
 * peer's row and the residual in shared memory, from where bulk copies bring them to global memory. So all
 * copies are whole rows, and several are in flight in each direction while one row is summed.
 *
 * A flag is stored after a fence. In a kernel whose threads store to the peers themselves, that fence waits
 * until all stores of the SM have been acknowledged; here only the sending thread waits, for one row.
 *
 * The bits equal those of all_reduce_norm.cu, because rows are divided into the same parts: THREADS threads
 * sum a part, as a CTA of a cluster does there, and four parts are summed at a time.
 *
 * A CTA waits only for the CTAs of the same index on the peers, so CTAs need not all be resident if every GPU
 * starts them in order. Calls that exceed a box take several launches.
 *
 * shared memory   rows of x, then of the stages: the peers' rows in rank order, and the residual's
 * barriers        a row: two named barriers of the warps that sum; mbarriers full and free of each place
 *
 * Floor: a crossing, and the bytes at the link's speed (265 GB/s in both directions: 127 us for 32 MB).
 */
#include "primitives/comm/all_reduce_norm.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define LONG		(2 << 20)	/* bytes of a call, in rows of LONG_ROW to LONGEST_ROW bytes */
#define LONG_ROW	4096
#define LONGEST_ROW	16384
#define AT_ONCE		4		/* parts of a row */
#define SUMMING		(AT_ONCE * THREADS)
#define SMEM_LIMIT	(220 * 1024)
#define MOST_PLACES	8
#define LEAST_PLACES	(UNTOLD + 2)	/* a row's copies have ended when its place is filled again */
#define MOST_STAGES	4
/*
 * Number of threads that arrive to mark a place as free, after a barrier of all threads that sum. racecheck
 * does not see that one arrival after a barrier stands for all, so in a DEBUG build all of them arrive.
 */
#ifdef CAIRN_DEBUG
#define ARRIVE		SUMMING
#else
#define ARRIVE		1
#endif
#define UNTOLD		1		/* rows whose copies may be in flight and whose flags are not set */

struct long_args {
	struct reduce_args r;
	uint32_t row_bytes;
	int32_t places, stages;		/* rows of x, and stages, in shared memory */
	int32_t stage_rows;
};

struct __align__(16) marks {
	uint64_t x_full[MOST_PLACES], x_free[MOST_PLACES], full[MOST_STAGES], free[MOST_STAGES];
	float2 sum[2][MAX_CLUSTER * WARPS / 2];		/* sums of squares of warps, of two rows in turn */
};

extern __shared__ __align__(128) char s_rows[];

/* A place in a ring: its number, and the parity of the turns so far. */
struct turn {
	int32_t at, parity;
};

ROW void next(struct turn *t, int32_t size)
{
	t->at = t->at + 1 == size ? 0 : t->at + 1;
	t->parity ^= t->at == 0;
}

ROW char *x_row(const struct long_args &a, int32_t place)
{
	return s_rows + place * a.row_bytes;
}

ROW char *stage_row(const struct long_args &a, int32_t stage, int32_t i)
{
	return s_rows + (a.places + stage * a.stage_rows + i) * a.row_bytes;
}

ROW int num_rows(const struct long_args &a)
{
	return (a.r.rows - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
}

ROW void bring(const struct long_args &a, char *to, const void *from, uint64_t *full)
{
	ptx_cp_async_bulk_g2s(ptx_smem(to), from, a.row_bytes, ptx_smem(full));
}

/* Copies row j of this CTA, which has arrived, to the boxes of the peers. */
ROW void send_row(const struct long_args &a, struct marks *m, uint32_t number, int j, const struct turn &t)
{
	const size_t at = (size_t)(blockIdx.x + j * gridDim.x) * a.row_bytes;

	ptx_mbarrier_wait(ptx_smem(&m->x_full[t.at]), t.parity);
#pragma unroll 1
	for (int r = 0; r < a.r.c.ranks; r++)
		if (r != a.r.c.rank)
			ptx_cp_async_bulk_s2g(comm_box(a.r.c, r, a.r.c.rank, number) + at,
					      ptx_smem(x_row(a, t.at)), a.row_bytes);
	ptx_cp_async_bulk_commit_group();
}

/* Runs in one thread. Turn j starts the load of row j, and then waits for row j - 1 and sends it. */
ROW void send_rows(const struct long_args &a, struct marks *m, uint32_t number, bool sends)
{
	const int n = num_rows(a);
	struct turn in = { 0, 1 }, out = { 0, 0 };

	for (int j = 0; j <= n; j++) {
		if (j < n) {
			/* the sums have read what was there, and its copies to the peers have ended */
			ptx_mbarrier_wait(ptx_smem(&m->x_free[in.at]), in.parity);
			ptx_mbarrier_arrive_expect_tx(ptx_smem(&m->x_full[in.at]), a.row_bytes);
			bring(a, x_row(a, in.at),
			      (const char *)a.r.x + (size_t)(blockIdx.x + j * gridDim.x) * a.row_bytes,
			      &m->x_full[in.at]);
			next(&in, a.places);
		}
		if (!sends || j == 0)
			continue;
		send_row(a, m, number, j - 1, out);
		next(&out, a.places);
		if (j > UNTOLD) {
			ptx_cp_async_bulk_wait_group<UNTOLD>();
			comm_tell(a.r.c, number, blockIdx.x + (j - 1 - UNTOLD) * gridDim.x);
		}
	}
	ptx_cp_async_bulk_wait_group<0>();
	for (int j = n > UNTOLD ? n - UNTOLD : 0; sends && j < n; j++)
		comm_tell(a.r.c, number, blockIdx.x + j * gridDim.x);
}

/* Runs in one thread. */
ROW void receive_rows(const struct long_args &a, struct marks *m, uint32_t number)
{
	const int n = num_rows(a), peers = a.r.c.ranks - 1;
	struct turn t = { 0, 1 };

	for (int j = 0; j < n; j++, next(&t, a.stages)) {
		const int row = blockIdx.x + j * gridDim.x;
		const size_t at = (size_t)row * a.row_bytes;

		ptx_mbarrier_wait(ptx_smem(&m->free[t.at]), t.parity);
		ptx_mbarrier_arrive_expect_tx(ptx_smem(&m->full[t.at]), a.stage_rows * a.row_bytes);
		if (a.r.residual)
			bring(a, stage_row(a, t.at, peers), (const char *)a.r.residual + at, &m->full[t.at]);
#pragma unroll 1
		for (int i = 0; i < peers; i++) {
			const int from = i + (i >= a.r.c.rank);

			comm_await_piece(a.r.c, COMM_ALL_REDUCE_NORM, number, from, row);
			ptx_fence_proxy_async_global();
			bring(a, stage_row(a, t.at, i), comm_box(a.r.c, a.r.c.rank, from, number) + at,
			      &m->full[t.at]);
		}
	}
}

/* Returns this thread's word in the slot-th of its parts, which are AT_ONCE parts apart; -1: none */
ROW int word_of(const struct reduce_args &a, int slot)
{
	const int part = threadIdx.x / THREADS + slot * AT_ONCE, i = threadIdx.x % THREADS;
	const int w = part * a.part + i;

	return part < 1 << a.shift && i < a.part && w < a.words ? w : -1;
}

/* Sums a word over the ranks and with the residual. sum: its rounded units. Returns the sum of squares. */
template <int dtype>
ROW float sum_word(const struct long_args &a, const struct turn &x, const struct turn &in, int w,
		   uint32_t *sum)
{
	constexpr int n = UNITS * unit_elements(dtype);
	uint32_t u[UNITS], old[UNITS] = { 0, 0, 0 };
	float t[n], f[n], squares = 0;

#pragma unroll 1
	for (int r = 0; r < a.r.c.ranks; r++) {
		const char *row = r == a.r.c.rank ? x_row(a, x.at) :
				  stage_row(a, in.at, r - (r > a.r.c.rank));

		load_units((const uint32_t *)row, a.r, w, u);
		word_unpack<dtype>(make_uint4(u[0], u[1], u[2], 0), f);
#pragma unroll
		for (int e = 0; e < n; e++)
			t[e] = r ? t[e] + f[e] : f[e];
	}
	if (a.r.residual)
		load_units((const uint32_t *)stage_row(a, in.at, a.r.c.ranks - 1), a.r, w, old);
	round_sum<dtype>(a.r, old, t, sum);
#pragma unroll
	for (int e = 0; e < n; e++)
		squares += t[e] * t[e];
	return squares;
}

/* Puts the results of a word over the first peer's row and the residual's. */
template <int dtype>
ROW void put_word(const struct long_args &a, const struct turn &in, int w, float scale,
		  const uint32_t *weight, const uint32_t *sum)
{
	uint32_t *out = (uint32_t *)stage_row(a, in.at, 0);
	uint32_t *residual = (uint32_t *)stage_row(a, in.at, a.r.c.ranks - 1);

#pragma unroll
	for (int j = 0; j < UNITS; j++) {
		if (w < 0 || w * UNITS + j >= a.r.units)
			continue;
		out[w * UNITS + j] = norm_unit<dtype>(a.r, j, scale, weight, sum);
		if (a.r.residual)
			residual[w * UNITS + j] = sum[j];
	}
}

/* Runs in one thread: starts the stores of row j; on return, those of row j - 1 have read shared memory. */
ROW void store_row(const struct long_args &a, int j, const struct turn &in)
{
	const size_t at = (size_t)(blockIdx.x + j * gridDim.x) * a.row_bytes;

	ptx_cp_async_bulk_s2g((char *)a.r.out + at, ptx_smem(stage_row(a, in.at, 0)), a.row_bytes);
	if (a.r.residual)
		ptx_cp_async_bulk_s2g((char *)a.r.residual + at,
				      ptx_smem(stage_row(a, in.at, a.r.c.ranks - 1)), a.row_bytes);
	ptx_cp_async_bulk_commit_group();
	ptx_cp_async_bulk_wait_group_read<1>();
}

template <int dtype, int slots> ROW void sum_rows(const struct long_args &a, struct marks *m)
{
	const int n = num_rows(a), part = threadIdx.x / THREADS, warp = threadIdx.x % THREADS / 32;
	struct turn x = { 0, 0 }, in = { 0, 0 };
	uint32_t weight[slots][UNITS];

#pragma unroll
	for (int s = 0; s < slots; s++)
		load_units(a.r.weight, a.r, word_of(a.r, s), weight[s]);
	for (int j = 0; j < n; j++, next(&x, a.places), next(&in, a.stages)) {
		float *sums = (float *)m->sum[j & 1], scale;
		uint32_t sum[slots][UNITS];

		ptx_mbarrier_wait(ptx_smem(&m->x_full[x.at]), x.parity);
		ptx_mbarrier_wait(ptx_smem(&m->full[in.at]), in.parity);
#pragma unroll
		for (int s = 0; s < slots; s++) {
			const float own = sum_word<dtype>(a, x, in, word_of(a.r, s), sum[s]);
			const float squares = row_warp_sum(own);

			if (threadIdx.x % 32 == 0 && part + s * AT_ONCE < MAX_CLUSTER)
				sums[(part + s * AT_ONCE) * WARPS + warp] = squares;
		}
		ptx_bar_sync(1, SUMMING);
		if (threadIdx.x < ARRIVE)
			ptx_mbarrier_arrive(ptx_smem(&m->x_free[x.at]));
		scale = rsqrtf(sum_parts(m->sum[j & 1], 1 << a.r.shift) / a.r.dim + a.r.eps);
#pragma unroll
		for (int s = 0; s < slots; s++)
			put_word<dtype>(a, in, word_of(a.r, s), scale, weight[s], sum[s]);
		ptx_fence_proxy_async_shared_cta();
		ptx_bar_sync(2, SUMMING);
		if (threadIdx.x == 0)
			store_row(a, j, in);
		if (j && threadIdx.x < ARRIVE)
			ptx_mbarrier_arrive(ptx_smem(&m->free[in.at ? in.at - 1 : a.stages - 1]));
	}
	if (threadIdx.x == 0)
		ptx_cp_async_bulk_wait_group<0>();
}

template <int dtype, int slots>
__global__ void __launch_bounds__(SUMMING + 64, 1)
all_reduce_norm_long_kernel(const __grid_constant__ struct long_args a)
{
	uint32_t number, entered = 0;
	bool sends;
	__shared__ struct marks s_marks;

	if (threadIdx.x == 0) {
		for (int i = 0; i < a.places; i++) {
			ptx_mbarrier_init(ptx_smem(&s_marks.x_full[i]), 1);
			ptx_mbarrier_init(ptx_smem(&s_marks.x_free[i]), ARRIVE);
		}
		for (int i = 0; i < a.stages; i++) {
			ptx_mbarrier_init(ptx_smem(&s_marks.full[i]), 1);
			ptx_mbarrier_init(ptx_smem(&s_marks.free[i]), ARRIVE);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	ptx_fence_proxy_async();
	number = comm_number(a.r.c);
	sends = !comm_has_failed(a.r.c);
	__syncthreads();
	if (threadIdx.x == 0)
		entered = comm_enter(a.r.c);
	if (threadIdx.x < SUMMING)
		sum_rows<dtype, slots>(a, &s_marks);
	else if (threadIdx.x == SUMMING)
		send_rows(a, &s_marks, number, sends);
	else if (threadIdx.x == SUMMING + 32)
		receive_rows(a, &s_marks, number);
	__syncthreads();
	if (threadIdx.x == 0)
		comm_leave(a.r.c, number, entered);
}

/* ---- launching ---- */

/* Sets how many rows lie in shared memory. Returns the bytes; 0: too few fit. */
static size_t place_rows(struct long_args *l, const struct cairn_all_reduce_norm_args *a)
{
	l->row_bytes = (uint32_t)a->dim * (a->dtype == CAIRN_F32 ? 4 : 2);
	l->stage_rows = a->comm.ranks - 1 + (a->residual != NULL);
	l->places = MOST_PLACES;
	l->stages = MOST_STAGES;
	while (l->places > LEAST_PLACES &&
	       (l->places + l->stages * l->stage_rows) * l->row_bytes > SMEM_LIMIT) {
		l->places--;
		if (l->stages > 2)
			l->stages--;
	}
	const size_t bytes = (size_t)(l->places + l->stages * l->stage_rows) * l->row_bytes;

	return bytes <= SMEM_LIMIT ? bytes : 0;
}

int all_reduce_norm_is_long(const struct cairn_all_reduce_norm_args *a)
{
	struct long_args l;

	return a->comm.ranks > 1 && place_rows(&l, a) && l.row_bytes >= LONG_ROW &&
	       l.row_bytes <= LONGEST_ROW && (int64_t)l.row_bytes * a->rows >= LONG;
}

static const void *kernel_of(int dtype, int slots)
{
#define OF(dtype) \
	(slots <= 1 ? (const void *)all_reduce_norm_long_kernel<dtype, 1> : \
		      (const void *)all_reduce_norm_long_kernel<dtype, 2>)
	return dtype == CAIRN_F32 ? OF(CAIRN_F32) : dtype == CAIRN_F16 ? OF(CAIRN_F16) : OF(CAIRN_BF16);
#undef OF
}

int all_reduce_norm_long(const struct cairn_all_reduce_norm_args *a, struct reduce_args *r, void *stream)
{
	struct cairn_launch l = { .block = { SUMMING + 64 }, .pdl = 1, .stream = stream };
	const void *kernel = kernel_of(a->dtype, r->shift > 2 ? 2 : 1);
	const int sms = cairn_num_sms();
	struct long_args args = { *r };
	void *params[] = { &args };
	int most;

	if (sms < 0)
		return sms;
	l.smem = place_rows(&args, a);
	most = (int)(COMM_BOX / args.row_bytes);
	for (int first = 0; first < a->rows; first += most) {
		const int64_t at = (int64_t)first * r->units;

		args.r.rows = a->rows - first < most ? a->rows - first : most;
		args.r.x = (const uint32_t *)a->x + at;
		args.r.out = (uint32_t *)a->out + at;
		args.r.residual = a->residual ? (uint32_t *)a->residual + at : NULL;
		l.grid[0] = (unsigned int)(args.r.rows < sms ? args.r.rows : sms);
		CAIRN_TRY(cairn_launch(kernel, &l, params));
	}
	return 0;
}
