// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/peers/fi_module.h"
#include "conformance/peers/fi_rows.h"
#include "conformance/peers/fi_value.h"
#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

#define MAX_DEVICES	16
#define MAX_POSITIONS	(1 << 17)
#define MAX_PAIRS	256		/* head_dim is at most 512 */

/* Cosines and sines by position: a row has first the cosines of all pairs, then the sines. */
static struct table {
	float inv_freq[MAX_PAIRS];
	int32_t pairs, positions;	/* pairs of a row; rows that are filled in */
	float *rows;			/* on the device, with room for all positions and pairs */
} tables[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The inputs that a call outside of a capture reads. */
struct inputs {
	float inv_freq[MAX_PAIRS];
	int32_t most;			/* the largest position */
};

static int read_inputs(const struct cairn_rope_args *a, struct inputs *in, void *stream)
{
	const size_t bytes = (size_t)a->nnz * sizeof(int32_t);
	int32_t *positions = malloc(bytes);
	int ret;

	if (!positions)
		return cairn_error(ENOMEM, "rope: no memory");
	ret = cairn_fi_fetch(positions, a->positions, bytes, stream);
	if (!ret)
		ret = cairn_fi_fetch(in->inv_freq, a->inv_freq, (size_t)a->rotary_dim / 2 * sizeof(float),
				     stream);
	in->most = 0;
	for (int32_t i = 0; !ret && i < a->nnz; i++)
		in->most = positions[i] > in->most ? positions[i] : in->most;
	free(positions);
	return ret;
}

/* Fills in the rows up to `positions`; the angle is the fp32 product, as in rope.h. */
static int extend(struct table *t, int32_t positions)
{
	const size_t bytes = 2 * (size_t)t->pairs * sizeof(float), first = (size_t)t->positions;
	const size_t count = (size_t)positions - first;
	float *rows = malloc(count * bytes);
	cudaError_t err;

	if (!rows)
		return cairn_error(ENOMEM, "rope: no memory");
	for (size_t i = 0; i < count; i++)
		for (int32_t k = 0; k < t->pairs; k++) {
			float angle = (float)(first + i) * t->inv_freq[k];
			float *row = rows + 2 * i * (size_t)t->pairs;

			row[k] = (float)cos((double)angle);
			row[t->pairs + k] = (float)sin((double)angle);
		}
	err = cudaMemcpy(t->rows + 2 * first * (size_t)t->pairs, rows, count * bytes, cudaMemcpyHostToDevice);
	free(rows);
	CAIRN_CUDA(err);
	t->positions = positions;
	return 0;
}

static int fill_table(struct table *t, const struct cairn_rope_args *a, void *stream)
{
	const int32_t pairs = a->rotary_dim / 2;
	struct inputs in;

	CAIRN_TRY(read_inputs(a, &in, stream));
	if (in.most >= MAX_POSITIONS)
		return cairn_error(EOPNOTSUPP, "rope: FlashInfer: positions: its table has %d here",
				   MAX_POSITIONS);
	if (!t->rows)
		CAIRN_CUDA(cudaMalloc((void **)&t->rows, sizeof(float) * 2 * MAX_PAIRS * MAX_POSITIONS));
	if (t->pairs != pairs || memcmp(t->inv_freq, in.inv_freq, (size_t)pairs * sizeof(float))) {
		t->pairs = pairs;
		t->positions = 0;
		memcpy(t->inv_freq, in.inv_freq, (size_t)pairs * sizeof(float));
	}
	return in.most < t->positions ? 0 : extend(t, in.most + 1);
}

static int find_table(const struct cairn_rope_args *a, void *stream, const struct table **out)
{
	int device, captured, ret;

	CAIRN_CUDA(cudaGetDevice(&device));
	if (device >= MAX_DEVICES)
		return cairn_error(EOPNOTSUPP, "rope: FlashInfer: more than %d devices", MAX_DEVICES);
	*out = &tables[device];
	CAIRN_TRY(cairn_fi_captured(stream, &captured));
	if (captured && (!tables[device].rows || tables[device].pairs != a->rotary_dim / 2))
		return cairn_error(EOPNOTSUPP, "rope: FlashInfer: the first call cannot be captured");
	if (captured)
		return 0;
	pthread_mutex_lock(&lock);
	ret = fill_table(&tables[device], a, stream);
	pthread_mutex_unlock(&lock);
	return ret;
}

static int supported(const struct cairn_rope_args *a)
{
	const int32_t d = a->head_dim;

	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "rope: FlashInfer: dtype: %s: its module has f16 and bf16",
				   cairn_dtype_name(a->dtype));
	if (!a->k)
		return cairn_error(EOPNOTSUPP, "rope: FlashInfer: k: must be given");
	if (a->q_norm || a->k_norm)
		return cairn_error(EOPNOTSUPP, "rope: FlashInfer: q_norm, k_norm: need another function");
	if (a->scale != 1)
		return cairn_error(EOPNOTSUPP, "rope: FlashInfer: scale: is 1 there");
	if (d != 64 && d != 128 && d != 256 && d != 512)
		return cairn_error(EOPNOTSUPP, "rope: FlashInfer: head_dim: %d: its kernel has 64, 128, 256 "
				   "and 512", d);
	return 0;
}

int cairn_rope_fi(const struct cairn_rope_args *args, void *stream)
{
	const char *const name = "apply_rope_pos_ids_cos_sin_cache";
	struct cairn_rope_args a;
	struct tvm_any result = fi_none();
	const struct table *table = NULL;
	struct fi_tensor t[6];
	tvm_function *f;
	int code;

	CAIRN_TRY(cairn_rope_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.nnz)
		return 0;
	CAIRN_TRY(supported(&a));
	CAIRN_TRY(cairn_fi_load("rope", "rope", &name, 1, &f));
	CAIRN_TRY(find_table(&a, stream, &table));
	const int64_t q_shape[] = { a.nnz, a.num_qo_heads, a.head_dim };
	const int64_t k_shape[] = { a.nnz, a.num_kv_heads, a.head_dim };
	const int64_t q_steps[] = { a.q_stride ? a.q_stride : q_shape[1] * q_shape[2], a.head_dim };
	const int64_t k_steps[] = { a.k_stride ? a.k_stride : k_shape[1] * k_shape[2], a.head_dim };

	code = fi_code(a.dtype == CAIRN_BF16);
	struct tvm_any given[] = {
		cairn_fi_tensor(&t[0], a.q, DL_CUDA, code, 16, 3, q_shape, q_steps),
		cairn_fi_tensor(&t[1], a.k, DL_CUDA, code, 16, 3, k_shape, k_steps),
		cairn_fi_tensor(&t[2], a.q, DL_CUDA, code, 16, 3, q_shape, q_steps),
		cairn_fi_tensor(&t[3], a.k, DL_CUDA, code, 16, 3, k_shape, k_steps),
		cairn_fi_rows(&t[4], table->rows, DL_FLOAT, 32, table->positions, a.rotary_dim),
		cairn_fi_list(&t[5], a.positions, DL_CUDA, DL_INT, 32, a.nnz),
		fi_flag(a.interleaved),
	};
	return cairn_fi_call("rope", f, given, FI_COUNT(given), stream, &result);
}
