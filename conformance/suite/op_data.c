// SPDX-License-Identifier: Apache-2.0
/* op_data - creates a case: its arguments, its buffers and their contents */
#include "conformance/suite/op_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "conformance/device/large.h"
#include "conformance/suite/place.h"
#include "conformance/suite/ranks.h"
#include "conformance/suite/random.h"
#include "primitives/base/rows.h"

#define FILL_PART	256
#define LARGE		((size_t)32 << 20)

uint64_t cairn_op_rand(struct cairn_op *op)
{
	return cairn_random_next(&op->rng);
}

int64_t cairn_op_range(struct cairn_op *op, int64_t lo, int64_t hi)
{
	return lo + (int64_t)(cairn_op_rand(op) % (uint64_t)(hi - lo + 1));
}

void cairn_apart(struct cairn_op *op)
{
	op->shared_rng = op->rng;
	op->rng += (uint64_t)op->rank * 0xd1342543de82ef95u;
	cairn_op_rand(op);
}

void cairn_together(struct cairn_op *op)
{
	op->rng = op->shared_rng ^ 0x5851f42d4c957f2du;	/* not the numbers that rank 0 has drawn meanwhile */
	cairn_op_rand(op);
}

static double uniform(struct cairn_op *op)
{
	return (double)(cairn_op_rand(op) >> 11) * 0x1p-53;
}

static double normal(struct cairn_op *op)
{
	double x;

	cairn_random_normal(&op->rng, &x, 1, 1);
	return x;
}

static double extreme(struct cairn_op *op, int dtype, double scale)
{
	/* large: sums of a few thousand products still fit fp32 */
	double large = dtype == CAIRN_F16 ? 6e4 : 1e15;
	double tiny = dtype == CAIRN_F16 ? 0x1p-20 : 0x1p-130;

	switch (cairn_op_rand(op) % 8) {
	case 0:
		return 0;
	case 1:
		return -0.0;
	case 2:
		return tiny * (double)cairn_op_range(op, -8, 8);
	case 3:
		return large * (0.5 + 0.5 * uniform(op)) * (cairn_op_rand(op) & 1 ? 1 : -1);
	case 4:
	case 5:
		return scale;
	default:
		return scale * normal(op);
	}
}

/* Fills elements [first, first + n) with random values. */
static void fill_part(struct cairn_op *op, void *p, int dtype, int64_t first, int64_t n, double scale)
{
	double x[FILL_PART];

	if (op->kind == CAIRN_KIND_EXTREME)
		for (int64_t i = 0; i < n; i++)
			x[i] = extreme(op, dtype, scale);
	else if (op->only_sizes)	/* the numbers that setup draws later stay the same */
		op->rng += (uint64_t)(op->kind == CAIRN_KIND_EXACT ? n : 2 * n) * CAIRN_RANDOM_STEP;
	else if (op->kind == CAIRN_KIND_EXACT)
		for (int64_t i = 0; i < n; i++)
			x[i] = (double)(cairn_op_rand(op) % 9) - 4;
	else
		cairn_random_normal(&op->rng, x, n, scale);
	if (!op->only_sizes)
		cairn_narrow(p, dtype, first, x, n);
}

void cairn_fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale)
{
	/*
	 * A large buffer repeats a block of random values, because drawing gigabytes of them would take
	 * longer than judging them. Row lengths are not multiples of the block's length, so rows differ.
	 */
	const int64_t block = (1 << 20) + 7;
	size_t esize = cairn_dtype_bytes(dtype);

	for (int64_t i = 0; i < count && i < block; i += FILL_PART) {
		int64_t end = count < block ? count : block;

		fill_part(op, p, dtype, i, end - i < FILL_PART ? end - i : FILL_PART, scale);
	}
	if (op->only_sizes && count)
		memset(p, 0, (size_t)count * esize);
	#pragma omp parallel for schedule(static) if (count > 16 * block)
	for (int64_t i = block; i < (op->only_sizes ? 0 : count); i += block)
		memcpy((char *)p + i * esize, p, (count - i < block ? count - i : block) * esize);
}

int64_t cairn_exact_most(int64_t n)
{
	return n > 0 ? (int64_t)sqrt(0x1p24 / (double)n) : 4096;
}

void cairn_fill_exact(struct cairn_op *op, void *p, int dtype, int64_t count, double scale, int64_t most)
{
	int64_t held = dtype == CAIRN_BF16 ? 256 : dtype == CAIRN_F16 ? 2048 : 1 << 24;

	if (op->kind != CAIRN_KIND_EXACT) {
		cairn_fill(op, p, dtype, count, scale);
		return;
	}
	most = most < held ? most : held;
	for (int64_t i = 0; i < count; i++)
		cairn_store(p, dtype, i, op->only_sizes ? 0 : (double)cairn_op_range(op, -most, most));
}

void cairn_fill_nan(void *p, int dtype, int64_t first, int64_t count)
{
	size_t esize = cairn_dtype_bytes(dtype);

	memset((char *)p + first * esize, 0xff, count * esize);
}

void *cairn_buffer_alloc(size_t bytes)
{
	return bytes < LARGE ? aligned_alloc(256, (bytes + 255) / 256 * 256) : cairn_large_alloc(bytes);
}

/* memset() by several threads where that pays. */
static void fill_bytes(uint8_t *p, int byte, size_t bytes)
{
	const size_t block = 4 << 20;

	#pragma omp parallel for schedule(static) if (bytes > 16 * block)
	for (size_t i = 0; i < bytes; i += block)
		memset(p + i, byte, bytes - i < block ? bytes - i : block);
}

void *cairn_far_alloc(size_t bytes)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_NOHUGEPAGE);
	return p;
}

void cairn_far_free(void *p, size_t bytes)
{
	if (p)
		munmap(p, bytes);
}

void *cairn_image_alloc(const struct cairn_buf *b)
{
	size_t bytes = b->bytes + 2 * CAIRN_CANARY;

	return b->far ? cairn_far_alloc(bytes) : cairn_buffer_alloc(bytes);
}

void cairn_image_free(const struct cairn_buf *b, void *image)
{
	if (b->far)
		cairn_far_free(image, b->bytes + 2 * CAIRN_CANARY);
	else
		cairn_large_free(image);
}

int cairn_buf_range(const struct cairn_buf *b, int k, struct cairn_range *r)
{
	if (k >= (b->far ? b->num_touched : 1))
		return 0;
	*r = b->far ? b->touched[k] : (struct cairn_range){ 0, b->count };
	return 1;
}

int cairn_buf_differs(const struct cairn_buf *b, const uint8_t *x, const uint8_t *y)
{
	size_t esize = cairn_dtype_bytes(b->dtype);
	struct cairn_range r;

	for (int k = 0; cairn_buf_range(b, k, &r); k++)
		if (memcmp(x + (size_t)r.first * esize, y + (size_t)r.first * esize, (size_t)r.count * esize))
			return 1;
	return 0;
}

int cairn_buf_of(const struct cairn_op *op, size_t field)
{
	for (int i = 0; i < op->num_alias; i++)
		if (op->alias[i].field == field && !op->alias[i].offset)
			field = op->alias[i].same_as;
	for (int i = 0; i < op->num_bufs; i++)
		if (op->bufs[i].field == field)
			return i;
	return -1;
}

static void *add_buf(struct cairn_op *op, size_t field, const char *expression, enum cairn_role role,
		     int dtype, int64_t count, int far)
{
	struct cairn_buf *b = &op->bufs[op->num_bufs];
	size_t bytes = count * cairn_dtype_bytes(dtype);
	void *data;

	if (op->num_bufs == CAIRN_MAX_BUFS || count < 0)
		abort();	/* a mistake in a test, not in its inputs */
	b->field = field;
	b->dtype = dtype;
	b->count = count;
	b->role = role;
	b->bytes = bytes;
	cairn_place_name(b, expression);
	b->far = far;
	b->used = far ? 0 : bytes;
	/* data stays 256-byte aligned, as device memory is */
	b->base = cairn_image_alloc(b);
	if (!b->base)
		abort();
	op->num_bufs++;
	data = b->base + CAIRN_CANARY;
	if (far) {
		memset(b->base, 0xff, CAIRN_CANARY);
		memset(b->base + CAIRN_CANARY + bytes, 0xff, CAIRN_CANARY);
	} else {
		fill_bytes(b->base, 0xff, bytes + 2 * CAIRN_CANARY);
		if (role == CAIRN_ROLE_OUT && !cairn_dtype_is_float(dtype))
			memset(data, 0x81, bytes);
	}
	memcpy((char *)op->args + field, &data, sizeof(data));
	return data;
}

void *cairn_buffer(struct cairn_op *op, size_t field, const char *expression, enum cairn_role role, int dtype,
		   int64_t count)
{
	return add_buf(op, field, expression, role, dtype, count, 0);
}

void *cairn_far_buffer(struct cairn_op *op, size_t field, const char *expression, enum cairn_role role,
		       int dtype, int64_t count)
{
	return add_buf(op, field, expression, role, dtype, count, 1);
}

static struct cairn_buf *far_buffer(struct cairn_op *op, const void *buffer)
{
	struct cairn_buf *b = op->bufs;

	while (b < op->bufs + op->num_bufs && b->base + CAIRN_CANARY != buffer)
		b++;
	if (b == op->bufs + op->num_bufs || !b->far)
		abort();	/* a mistake in a test */
	return b;
}

void cairn_idle(struct cairn_op *op, const void *buffer)
{
	far_buffer(op, buffer)->idle = 1;
}

void cairn_touch(struct cairn_op *op, const void *buffer, int64_t first, int64_t count)
{
	struct cairn_buf *b = far_buffer(op, buffer);
	struct cairn_range *r;
	size_t esize;
	int at = 0;

	if (first < 0 || count < 0 || first + count > b->count)
		abort();	/* a mistake in a test */
	if (!count)
		return;
	r = realloc(b->touched, (size_t)(b->num_touched + 1) * sizeof(*r));
	if (!r)
		abort();
	b->touched = r;
	while (at < b->num_touched && r[at].first < first)
		at++;
	if ((at && r[at - 1].first + r[at - 1].count > first) ||
	    (at < b->num_touched && first + count > r[at].first))
		abort();	/* a mistake in a test: the ranges overlap */
	memmove(r + at + 1, r + at, (size_t)(b->num_touched++ - at) * sizeof(*r));
	r[at] = (struct cairn_range){ first, count };
	esize = cairn_dtype_bytes(b->dtype);
	b->used += (size_t)count * esize;
	memset(b->base + CAIRN_CANARY + (size_t)first * esize,
	       b->role == CAIRN_ROLE_OUT && !cairn_dtype_is_float(b->dtype) ? 0x81 : 0xff,
	       (size_t)count * esize);
}

int32_t cairn_far_row(int32_t rows, int i)
{
	const int32_t row[] = { 0, 1, rows / 2, rows / 2 + 1, rows - 3, rows - 2, rows - 1 };

	return i < (int)ARRAY_SIZE(row) ? row[i] : -1;
}

void *cairn_far_rows(struct cairn_op *op, size_t field, const char *expression, enum cairn_role role,
		     int dtype, int32_t rows, int64_t row, double scale)
{
	char *p = cairn_far_buffer(op, field, expression, role, dtype, rows * row);
	size_t bytes = (size_t)row * cairn_dtype_bytes(dtype);
	int32_t at;

	cairn_set_shape(op, field, (const struct cairn_axis[]){ { "row", rows }, { "element", row }, { 0 } });
	cairn_idle(op, p);
	for (int i = 0; (at = cairn_far_row(rows, i)) >= 0; i++) {
		cairn_touch(op, p, at * row, row);
		if (role != CAIRN_ROLE_OUT && scale != 0)
			cairn_fill(op, p + (size_t)at * bytes, dtype, row, scale);
	}
	return p;
}

int cairn_part(int32_t rows, int64_t row_bytes, int32_t least, int i, int32_t *first, int32_t *count)
{
	int32_t unit = 1, head, middle;

	while (unit * row_bytes % 16)
		unit *= 2;
	head = (least + unit - 1) / unit * unit;
	if (rows - head < least || i > 2)
		return 0;
	middle = head + (rows - head) / 2 / unit * unit;
	if (middle - head < least || rows - middle < least)
		middle = rows;
	*first = i == 0 ? 0 : i == 1 ? head : middle;
	*count = (i == 0 ? head : i == 1 ? middle : rows) - *first;
	return *count > 0;
}

void cairn_set_alias(const struct cairn_op *op, void *args)
{
	for (int i = 0; i < op->num_alias; i++) {
		char *p;

		memcpy(&p, (char *)args + op->alias[i].same_as, sizeof(p));
		p += op->alias[i].offset;
		memcpy((char *)args + op->alias[i].field, &p, sizeof(p));
	}
}

void cairn_within(struct cairn_op *op, size_t field, size_t same_as, size_t offset)
{
	if (op->num_alias == (int)ARRAY_SIZE(op->alias))
		abort();	/* a mistake in a test */
	op->alias[op->num_alias++] = (struct cairn_place){ field, same_as, offset };
	cairn_set_alias(op, op->args);
}

void cairn_alias(struct cairn_op *op, size_t field, size_t same_as)
{
	cairn_within(op, field, same_as, 0);
}

static int open_op(struct cairn_op *op, const struct cairn_family *f, int case_index, enum cairn_kind kind,
		   uint64_t seed, int only_sizes)
{
	memset(op, 0, sizeof(*op));
	op->only_sizes = only_sizes;
	op->args = calloc(1, f->args_size);
	op->bufs = calloc(CAIRN_MAX_BUFS, sizeof(*op->bufs));
	if (!op->args || !op->bufs) {
		cairn_op_close(op);
		return cairn_error(ENOMEM, "%s: no memory for case %d", f->name, case_index);
	}
	memcpy(op->args, &f->args_size, sizeof(size_t));
	op->kind = kind;
	op->case_index = case_index;
	op->rng = seed * 0x9e3779b97f4a7c15u + (uint64_t)case_index * CAIRN_NUM_KINDS + kind;
	for (const char *s = f->name; *s; s++)
		op->rng = (op->rng ^ (uint8_t)*s) * 0x100000001b3u;
	op->seed = seed;
	cairn_ranks_place(op, f);
	f->setup(op);
	return 0;
}

int cairn_op_open(struct cairn_op *op, const struct cairn_family *f, int case_index,
		  enum cairn_kind kind, uint64_t seed)
{
	return open_op(op, f, case_index, kind, seed, 0);
}

int cairn_op_bytes(const struct cairn_family *f, int case_index, enum cairn_kind kind, uint64_t seed,
		   size_t *bytes)
{
	struct cairn_op op;

	CAIRN_TRY(open_op(&op, f, case_index, kind, seed, 1));
	*bytes = 0;
	for (int i = 0; i < op.num_bufs; i++)
		*bytes += op.bufs[i].used;
	cairn_op_close(&op);
	return 0;
}

void cairn_op_close(struct cairn_op *op)
{
	for (int i = 0; i < op->num_bufs; i++) {
		cairn_image_free(&op->bufs[i], op->bufs[i].base);
		free(op->bufs[i].touched);
	}
	free(op->bufs);
	free(op->args);
	memset(op, 0, sizeof(*op));
}
