/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr - attention over lists of blocks on the GPU: planner, attention, merge
 *
 *   1  attn_bsr_plan.cu   one CTA, or a cluster, divides the call into units and runs by the list lengths
 *   2  attn_bsr_64.cu ... persistent CTAs of a producer and one or two consumer warpgroups take runs. The
 *                         producer (attn_bsr_fetch.cuh) fetches keys and computes masks; one more warpgroup
 *                         converts 8-bit keys (attn_bsr_convert.cuh); the consumers are those of attn_dense
 *                         (attn_forward.cuh)
 *   3  attn_bsr_merge.cu  merges the states of units that were cut, and of several parts
 *
 * The host reads no array; it lays out the grid and the workspace from the scalars alone. attn_paged uses
 * these kernels for prompts (attn_bsr_front.h).
 *
 * Forms: rows x keys of a tile, stages of K and V, buffers of Q, shared memory; with 8-bit keys in brackets
 *    64   128 x 128   3 (3)   2 (2)   150 (173) KiB
 *   128   128 x 128   2 (2)   2 (1)   210 (225) KiB
 *   256   128 x  64   2 (2)   1 (1)   209 (224) KiB
 *    64    64 x 128   3 (3)   2 (2)   125 (148) KiB
 *   128    64 x 128   2 (2)   2 (2)   171 (218) KiB
 *   256    64 x  64   2 (2)   2 (1)   202 (217) KiB
 * The forms of 64 rows serve calls whose block rows have at most 64 packed rows, such as decoding.
 *
 * Floor: that of attn_dense for long prompts; the time to read K and V for few tokens over long lists.
 * Optimisation history: ../NOTES.md.
 */
#include "fused/attention/bsr/attn_bsr_dev.cuh"
#include "fused/attention/bsr/attn_bsr_front.h"

#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"

#define ALIGNMENT	256
/*
 * Keys and values that fit the L2 beside Q and O: half as many in calls without masks, whose row tiles go
 * through all keys of a head at the same pace (../NOTES.md)
 */
#define SECTION_BYTES	(32 << 20)
#define SECTION_BYTES_ALL	(16 << 20)
#define MIN_BOX		8		/* slots of a TMA box, at least */
#define MERGE_CTAS	8		/* for each SM, if the call may use all SMs */
#define UNITS_OF_CTA	512		/* units per CTA of the planner */

static struct attn_bsr_kernel choose(int32_t head_dim, int few)
{
	return head_dim == 64 ? attn_bsr_64(few) : head_dim == 128 ? attn_bsr_128(few) : attn_bsr_256(few);
}

/* Returns whether no block row can have more than ATTN_FEW_ROWS packed rows. */
static int has_few_rows(const struct cairn_attn_bsr_args *a)
{
	int64_t most = 0;

	for (int i = 0; i < a->num_parts; i++) {
		const struct cairn_attn_part *p = &a->part[i];
		int64_t tokens = p->row_indptr || p->block_m > a->nnz_qo ? a->nnz_qo : p->block_m;

		if (p->rows && tokens > most)
			most = tokens;
	}
	return most * (a->num_qo_heads / a->num_kv_heads) <= ATTN_FEW_ROWS;
}

/* Takes `count` elements of `bytes` each from the workspace. If base is NULL, only measures. */
static void *take(char *base, size_t *used, int64_t count, size_t bytes)
{
	char *at = base ? base + *used : NULL;

	*used += ((size_t)count * bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	return at;
}

/* Returns the largest possible number of units. Sets *tiles to that of the key tiles of all units. */
static int64_t most_units(const struct attn_bsr_call *c, int64_t *tiles)
{
	int64_t units = 0;

	*tiles = 0;
	for (int i = 0; i < c->a.num_parts; i++) {
		const struct cairn_attn_part *p = &c->a.part[i];
		int64_t n = (p->rows + (int64_t)c->a.nnz_qo * c->d.group / c->d.rows) * c->d.heads;

		units += n;
		*tiles += n * (p->max_keys / c->d.keys + 2);
	}
	return units;
}

static void divide(struct attn_bsr_call *c, int rows, int keys, int ctas)
{
	int64_t key_bytes = 0, section = c->a.window ? SECTION_BYTES : SECTION_BYTES_ALL;

	c->d.rows = rows;
	c->d.keys = keys;
	c->d.group = c->a.num_qo_heads / c->a.num_kv_heads;
	c->d.heads = c->a.num_kv_heads;
	c->d.ctas = ctas;
	c->d.magic = attn_magic((uint32_t)c->d.group);
	c->d.lists[0] = 0;
	for (int i = 0; i < CAIRN_ATTN_PARTS; i++) {
		const struct cairn_attn_part *p = &c->a.part[i];
		int64_t bytes = (int64_t)p->max_keys * c->a.head_dim * (c->a.kv_fp8 ? 2 : 4);

		c->d.lists[i + 1] = c->d.lists[i] + (i < c->a.num_parts ? p->rows * p->index_heads : 0);
		if (i < c->a.num_parts) {
			c->d.step_blocks[i] = keys / p->block_n;
			c->d.step_slots[i] = keys % p->block_n;
		}
		if (i < c->a.num_parts && bytes > key_bytes)
			key_bytes = bytes;
		if (i < c->a.num_parts && p->mask_mode != CAIRN_ATTN_ALL)
			section = SECTION_BYTES;
	}
	section = key_bytes ? section / key_bytes : c->d.heads;
	c->d.section = (int32_t)(section < 1 ? 1 : section < c->d.heads ? section : c->d.heads);
}

/* Returns attn_division.box of a part. A box lies within a block. */
static int32_t box_of(const struct attn_bsr_call *c, const struct cairn_attn_part *p)
{
	const int64_t bytes = c->a.kv_fp8 ? 1 : 2, most_stride = (int64_t)1 << 40;
	const int32_t most = c->d.keys, box = p->block_n & -p->block_n;
	const double end = (double)p->num_blocks * (double)p->block_stride +
			   (double)p->block_n * (double)p->slot_stride;

	if (box < MIN_BOX || !p->num_blocks || c->d.heads * p->head_stride > 0x7fffffff ||
	    8 * p->slot_stride * bytes >= most_stride || p->block_stride * bytes >= most_stride)
		return end * bytes < 16 * 0x1p32 ? 0 : -1;
	return box < most ? box : most;
}

/* Returns whether TMA can copy Q of full row tiles: their tokens must be consecutive and have all heads. */
static int32_t has_box_q(const struct attn_bsr_call *c)
{
	for (int i = 0; i < c->a.num_parts; i++)
		if (c->a.part[i].q_index)
			return 0;
	return c->d.rows % c->d.group == 0 && c->a.q_stride < (int64_t)1 << 39;
}

static int map_q(CUtensorMap *map, const struct attn_bsr_call *c)
{
	const struct cairn_tensor_layout t = {
		.data = c->a.q, .dims = 3, .element_bytes = 2,
		.size = { (uint64_t)c->a.head_dim, (uint64_t)c->a.num_qo_heads, (uint64_t)c->a.nnz_qo },
		.stride = { (uint64_t)c->a.head_dim * 2, (uint64_t)c->a.q_stride * 2 },
		.box = { 64, (uint32_t)c->d.group, (uint32_t)(c->d.rows / c->d.group) },
		.swizzle = 128, .promotion = 256,
	};

	return cairn_tensor_map(map, &t, "attn_bsr");
}

static int map_kv(CUtensorMap *map, const struct attn_bsr_call *c, const struct cairn_attn_part *p,
		  int32_t box, const void *data)
{
	const uint32_t bytes = c->a.kv_fp8 ? 1 : 2, row = c->a.kv_fp8 && c->a.head_dim > 64 ? 128 : 64;
	const uint32_t panels = (uint32_t)c->a.head_dim / row;
	const struct cairn_tensor_layout t = {
		.data = data, .dims = 5, .element_bytes = (int)bytes,
		.size = { (uint64_t)((c->d.heads - 1) * p->head_stride) + row, 8, panels,
			  (uint64_t)p->block_n / 8, (uint64_t)p->num_blocks },
		.stride = { (uint64_t)p->slot_stride * bytes, row * bytes,
			    (uint64_t)p->slot_stride * 8 * bytes, (uint64_t)p->block_stride * bytes },
		.box = { row, 8, panels, (uint32_t)box / 8, 1 },
		.swizzle = row * bytes == 128 ? 128 : 0, .promotion = c->a.head_dim * bytes > 128 ? 256 : 128,
	};

	return cairn_tensor_map(map, &t, "attn_bsr");
}

/* Maps what is copied in boxes. */
static int map_all(struct attn_bsr_maps *maps, const struct attn_bsr_call *c)
{
	if (c->d.box_q)
		CAIRN_TRY(map_q(&maps->q, c));
	for (int i = 0; i < c->a.num_parts; i++) {
		const struct cairn_attn_part *p = &c->a.part[i];

		if (c->d.box[i] <= 0 || !p->rows)
			continue;
		CAIRN_TRY(map_kv(&maps->of[0][i], c, p, c->d.box[i], p->k));
		CAIRN_TRY(map_kv(&maps->of[1][i], c, p, c->d.box[i], p->v));
	}
	return 0;
}

/* Returns whether row tiles, lists and costs fit 32 bits. longest: the most tokens of a list. */
static bool fits(const struct attn_bsr_call *c, int64_t longest)
{
	const int64_t group = c->d.group, most = 0x7fffffff;
	int64_t tiles, lists = 0, units = most_units(c, &tiles);

	for (int i = 0; i < c->a.num_parts; i++)
		lists += (int64_t)c->a.part[i].rows * c->a.part[i].index_heads;
	return (longest + c->d.rows) * group * group <= most && lists < most &&
	       units + (c->d.uncut ? 2 * c->d.ctas : tiles) <= most;
}

static size_t lay_out(struct attn_bsr_call *c, char *base)
{
	const struct cairn_attn_bsr_args *a = &c->a;
	int64_t tiles, pieces = c->d.uncut ? 0 : 2 * (int64_t)c->d.ctas * c->d.rows;
	int64_t states = a->num_parts > 1 ? (int64_t)a->num_parts * a->nnz_qo * a->num_qo_heads : 0;
	size_t used = 0;

	c->w.head = (struct attn_plan_head *)take(base, &used, 1, sizeof(*c->w.head));
	c->w.list_units = (int32_t *)take(base, &used, (int64_t)c->d.lists[a->num_parts] + 1, 4);
	c->w.units = (struct attn_unit *)take(base, &used, most_units(c, &tiles), sizeof(*c->w.units));
	c->w.costs = (int32_t *)take(base, &used, most_units(c, &tiles), 4);
	c->w.runs = (struct attn_run *)take(base, &used, c->d.ctas + 1, sizeof(*c->w.runs));
	for (int i = 1; i < a->num_parts; i++)
		c->w.place[i] = (int32_t *)take(base, &used, a->nnz_qo, 4);
	c->w.piece_o = (float *)take(base, &used, pieces * a->head_dim, 4);
	c->w.piece_lse = (float *)take(base, &used, pieces, 4);
	c->w.part_o = (float *)take(base, &used, states * a->head_dim, 4);
	c->w.part_lse = (float *)take(base, &used, states, 4);
	return used;
}

/*
 * Returns whether the units of a front's call are cut. A front promises that the bits of a row do not depend
 * on other lists, so its units are cut only if there is a single list. They are not cut either if there are
 * at least half as many full row tiles as CTAs, because cutting them would gain little.
 */
static int cuts_units(const struct attn_bsr_call *c)
{
	return c->a.part[0].rows == 1 &&
	       2 * ((int64_t)c->a.nnz_qo * c->d.group / c->d.rows * c->d.heads) < c->d.ctas;
}

/*
 * Fills in the strides and divides the call, whose scalars have been checked. few: see choose(); front: NULL
 * for attn_bsr itself. Returns -EOPNOTSUPP, without an error text, if the sizes are too large.
 */
static int begin(struct attn_bsr_call *c, const struct cairn_attn_bsr_args *args, int few,
		 const struct attn_bsr_front *front, struct attn_bsr_kernel *f)
{
	int sms = cairn_sms_of(args->sms);

	if (sms < 0)
		return sms;
	*c = {};
	c->a = *args;
	if (!c->a.q_stride)
		c->a.q_stride = (int64_t)args->num_qo_heads * args->head_dim;
	for (int i = 0; i < args->num_parts; i++) {
		struct cairn_attn_part *p = &c->a.part[i];

		p->head_stride = cairn_attn_head_stride(p, args->head_dim);
		p->slot_stride = cairn_attn_slot_stride(p, args->num_kv_heads, args->head_dim);
		p->block_stride = cairn_attn_block_stride(p, args->num_kv_heads, args->head_dim);
	}
	*f = choose(args->head_dim, few);
	divide(c, f->rows, f->keys, sms);
	c->d.uncut = front && !cuts_units(c);
	c->d.skip = front ? front->skip : 0;
	for (int i = 0; i < args->num_parts; i++)
		c->d.box[i] = box_of(c, &c->a.part[i]);
	c->d.box_q = has_box_q(c);
	return fits(c, front ? front->longest : args->nnz_qo) ? 0 : -EOPNOTSUPP;
}

/* begin() for attn_bsr itself; sets an error text. */
static int begin_bsr(struct attn_bsr_call *c, const struct cairn_attn_bsr_args *args, int few,
		     struct attn_bsr_kernel *f)
{
	int ret = begin(c, args, few, NULL, f);

	return ret == -EOPNOTSUPP ?
	       cairn_error(EOPNOTSUPP, "attn_bsr: nnz_qo, rows, max_keys: too large") : ret;
}

/*
 * Returns the larger of the sizes for both numbers of rows per tile. Which one a call uses depends on whether
 * it has row_indptr, and this query may read only the scalars.
 */
extern "C" int cairn_attn_bsr_workspace(const struct cairn_attn_bsr_args *args, size_t *bytes)
{
	struct attn_bsr_kernel f;
	struct attn_bsr_call c;
	size_t of_few;

	if (!bytes)
		return cairn_error(EINVAL, "attn_bsr_workspace: null pointer");
	CAIRN_TRY(cairn_attn_bsr_check_shape(args));
	CAIRN_TRY(begin_bsr(&c, args, 1, &f));
	of_few = lay_out(&c, NULL);
	CAIRN_TRY(begin_bsr(&c, args, 0, &f));
	*bytes = lay_out(&c, NULL);
	if (*bytes < of_few)
		*bytes = of_few;
	return 0;
}

/* maps: the kernel's second parameter, or NULL. */
static int launch(const void *kernel, int grid, int cluster, int threads, size_t smem,
		  struct attn_bsr_call *c, struct attn_bsr_maps *maps, void *stream)
{
	struct cairn_launch l = {};
	void *params[] = { c, maps };

	l.grid[0] = (unsigned int)grid;
	l.cluster = cluster;
	l.block[0] = (unsigned int)threads;
	l.smem = smem;
	l.pdl = !c->a.sms;
	l.stream = stream;
	return cairn_launch(kernel, &l, params);
}

static int plan(struct attn_bsr_call *c, void *stream)
{
	int64_t tiles, units = most_units(c, &tiles), threads = c->d.lists[c->a.num_parts];
	int ctas = 1;

	while (ctas < ATTN_PLAN_CTAS && 2 * ctas <= c->d.ctas && units > (int64_t)ctas * UNITS_OF_CTA)
		ctas *= 2;
	if (threads < (units + ctas - 1) / ctas)
		threads = (units + ctas - 1) / ctas;
	threads = threads < ATTN_PLAN_THREADS ? (threads + 31) / 32 * 32 : ATTN_PLAN_THREADS;
	return launch(attn_bsr_plan_kernel(), ctas, ctas > 1 ? ctas : 0, (int)threads, 0, c, NULL, stream);
}

static int attend(struct attn_bsr_call *c, const struct attn_bsr_kernel *f, void *stream)
{
	struct attn_bsr_maps maps = {};

	CAIRN_TRY(map_all(&maps, c));
	return launch(f->kernel[c->a.dtype == CAIRN_BF16][c->a.kv_fp8], c->d.ctas, 0, f->threads[c->a.kv_fp8],
		      f->smem[c->a.kv_fp8], c, &maps, stream);
}

static int merge(struct attn_bsr_call *c, void *stream)
{
	return launch(attn_bsr_merge_kernel(c->a.head_dim, c->a.dtype),
		      c->a.sms ? c->d.ctas : MERGE_CTAS * c->d.ctas, 0, ATTN_MERGE_THREADS, 0, c, NULL,
		      stream);
}

/* Checks the arguments of a call and prepares it. */
static int prepare(struct attn_bsr_call *c, const struct cairn_attn_bsr_args *args, struct attn_bsr_kernel *f)
{
	size_t bytes;

	CAIRN_TRY(cairn_attn_bsr_check(args));
	CAIRN_TRY(cairn_attn_bsr_workspace(args, &bytes));
	CAIRN_TRY(begin_bsr(c, args, has_few_rows(args), f));
	if (!args->workspace || (uintptr_t)args->workspace % ALIGNMENT || args->workspace_bytes < bytes)
		return cairn_error(EINVAL, "attn_bsr: workspace, workspace_bytes: at least %zu bytes, "
				   "%d-byte aligned", bytes, ALIGNMENT);
	lay_out(c, (char *)args->workspace);
	return 0;
}

static bool is_empty(const struct cairn_attn_bsr_args *args)
{
	return !args->nnz_qo || !args->part[0].rows;
}

extern "C" int cairn_attn_plan(const struct cairn_attn_bsr_args *args, void *stream)
{
	struct attn_bsr_kernel f;
	struct attn_bsr_call c;

	CAIRN_TRY(prepare(&c, args, &f));
	return is_empty(args) ? 0 : plan(&c, stream);
}

extern "C" int cairn_attn_bsr(const struct cairn_attn_bsr_args *args, void *stream)
{
	struct attn_bsr_kernel f;
	struct attn_bsr_call c;

	CAIRN_TRY(prepare(&c, args, &f));
	if (is_empty(args))
		return 0;
	if (!args->planned)
		CAIRN_TRY(plan(&c, stream));
	CAIRN_TRY(attend(&c, &f, stream));
	return merge(&c, stream);
}

/* begin() for a front: its scalars alone decide between the forms */
static int begin_front(struct attn_bsr_call *c, const struct cairn_attn_bsr_args *args,
		       const struct attn_bsr_front *front, struct attn_bsr_kernel *f)
{
	int64_t group = args->num_qo_heads / args->num_kv_heads;

	return begin(c, args, front->longest * group <= ATTN_FEW_ROWS, front, f);
}

int attn_bsr_front_workspace(const struct cairn_attn_bsr_args *args, const struct attn_bsr_front *front,
			     size_t *bytes)
{
	struct attn_bsr_kernel f;
	struct attn_bsr_call c;

	CAIRN_TRY(begin_front(&c, args, front, &f));
	*bytes = lay_out(&c, NULL);
	return 0;
}

int attn_bsr_front_plan(const struct cairn_attn_bsr_args *args, const struct attn_bsr_front *front,
			void *stream)
{
	struct attn_bsr_kernel f;
	struct attn_bsr_call c;

	CAIRN_TRY(begin_front(&c, args, front, &f));
	lay_out(&c, (char *)args->workspace);
	return plan(&c, stream);
}

int attn_bsr_front_attend(const struct cairn_attn_bsr_args *args, const struct attn_bsr_front *front,
			  void *stream)
{
	struct attn_bsr_kernel f;
	struct attn_bsr_call c;

	CAIRN_TRY(begin_front(&c, args, front, &f));
	lay_out(&c, (char *)args->workspace);
	CAIRN_TRY(attend(&c, &f, stream));
	return c.d.uncut ? 0 : merge(&c, stream);
}
