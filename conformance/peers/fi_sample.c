// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_sample.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

#include "conformance/peers/fi_module.h"
#include "conformance/peers/fi_value.h"
#include "primitives/base/args.h"
#include "primitives/base/launch.h"

#define MAX_DEVICES	16
#define MAX_SHAPES	32
#define OWN_BYTES	(1 << 20)	/* of each buffer below, as in FlashInfer's own wrapper */

enum { MASK, SOFTMAX, TOP_P, FROM_PROBS, FROM_LOGITS, NUM_FUNCTIONS };
static const char *const names[] = {
	[MASK] = "top_k_mask_logits", [SOFTMAX] = "softmax", [TOP_P] = "top_p_sampling_from_probs",
	[FROM_PROBS] = "sampling_from_probs", [FROM_LOGITS] = "sampling_from_logits",
};

/* Which functions the values of a shape's rows need. */
struct choice {
	int32_t rows, vocab, device;
	uint64_t used;			/* value of `now` at the last use; 0: free */
	int top_k, top_p, tempered;
};

/* What the kernels of a device keep between calls; FlashInfer zeroes the first one once. */
static struct own {
	void *row_states, *softmax;
} owns[MAX_DEVICES];
static struct choice choices[MAX_SHAPES];
static uint64_t now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The steps of a call share these. */
struct draw {
	const struct cairn_sample_args *a;
	tvm_function *f[NUM_FUNCTIONS];
	const struct own *own;
	float *masked, *probs;
	uint8_t *valid;
	void *stream;
};

static size_t padded(size_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

static size_t logit_bytes(const struct cairn_sample_args *a)
{
	return padded((size_t)a->rows * (size_t)a->vocab * sizeof(float));
}

int cairn_sample_fi_workspace(const struct cairn_sample_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_sample_check_shape(args));
	*bytes = 2 * logit_bytes(args) + padded((size_t)args->rows);
	return 0;
}

/* The values of all rows, on the host. */
struct values {
	float *temperature, *top_p, *min_p;
	int32_t *top_k;
};

static int choose(const struct cairn_sample_args *a, const struct values *v, struct choice *c)
{
	int32_t with_k = 0;

	c->top_p = c->tempered = 0;
	for (int32_t i = 0; i < a->rows; i++) {
		if (!(v->temperature[i] > 0))
			return cairn_error(EOPNOTSUPP, "sample: FlashInfer: temperature: 0 in row %d", i);
		if (v->min_p[i] != 0)
			return cairn_error(EOPNOTSUPP, "sample: FlashInfer: min_p: is another function, "
					   "without top_k and top_p");
		with_k += v->top_k[i] > 0;
		c->top_p |= v->top_p[i] < 1;
		c->tempered |= v->temperature[i] != 1;
	}
	if (with_k && with_k < a->rows)
		return cairn_error(EOPNOTSUPP, "sample: FlashInfer: top_k: must be on in all rows or none");
	c->top_k = with_k > 0;
	return 0;
}

static int read_values(const struct cairn_sample_args *a, struct choice *c, void *stream)
{
	const size_t n = (size_t)a->rows, bytes = n * sizeof(float);
	float *host = malloc(4 * bytes);
	const struct values v = { host, host + n, host + 2 * n, (int32_t *)(host + 3 * n) };
	int ret;

	if (!host)
		return cairn_error(ENOMEM, "sample: no memory");
	ret = cairn_fi_fetch(v.temperature, a->temperature, bytes, stream);
	if (!ret)
		ret = cairn_fi_fetch(v.top_p, a->top_p, bytes, stream);
	if (!ret)
		ret = cairn_fi_fetch(v.min_p, a->min_p, bytes, stream);
	if (!ret)
		ret = cairn_fi_fetch(v.top_k, a->top_k, bytes, stream);
	if (!ret)
		ret = choose(a, &v, c);
	free(host);
	return ret;
}

/* The caller holds the lock. */
static int find(const struct cairn_sample_args *a, int32_t device, int captured, struct choice **out)
{
	struct choice *oldest = &choices[0];

	for (int i = 0; i < MAX_SHAPES; i++) {
		struct choice *c = &choices[i];

		if (c->used && c->rows == a->rows && c->vocab == a->vocab && c->device == device) {
			c->used = ++now;
			*out = c;
			return 0;
		}
		if (c->used < oldest->used)
			oldest = c;
	}
	if (captured)
		return cairn_error(EOPNOTSUPP, "sample: FlashInfer: the first call of a shape cannot be "
				   "captured");
	*oldest = (struct choice){ .rows = a->rows, .vocab = a->vocab, .device = device, .used = ++now };
	*out = oldest;
	return 0;
}

static int open_own(struct own *own)
{
	if (own->softmax)
		return 0;
	CAIRN_CUDA(cudaMalloc(&own->row_states, OWN_BYTES));
	CAIRN_CUDA(cudaMemset(own->row_states, 0, OWN_BYTES));
	CAIRN_CUDA(cudaDeviceSynchronize());
	CAIRN_CUDA(cudaMalloc(&own->softmax, OWN_BYTES));
	return 0;
}

/* Copies the choice to *out. The caller holds the lock. */
static int prepare(const struct cairn_sample_args *a, int device, void *stream, struct choice *out)
{
	struct choice *c = NULL;
	int captured, ret = 0;

	CAIRN_TRY(cairn_fi_captured(stream, &captured));
	CAIRN_TRY(find(a, device, captured, &c));
	if (!captured) {
		ret = open_own(&owns[device]);
		if (!ret)
			ret = read_values(a, c, stream);
		if (ret)
			c->used = 0;
	}
	*out = *c;
	return ret;
}

static struct tvm_any logits_of(const struct draw *d, struct fi_tensor *t, const float *x)
{
	return cairn_fi_rows(t, x, DL_FLOAT, 32, d->a->rows, d->a->vocab);
}

static struct tvm_any per_row(const struct draw *d, struct fi_tensor *t, const void *x, int code, int bits)
{
	return cairn_fi_list(t, x, DL_CUDA, code, bits, d->a->rows);
}

static int call(const struct draw *d, int which, const struct tvm_any *args, int count)
{
	struct tvm_any result = fi_none();

	return cairn_fi_call("sample", d->f[which], args, count, d->stream, &result);
}

static int mask(const struct draw *d)
{
	struct fi_tensor t[4];
	const struct tvm_any args[] = {
		logits_of(d, &t[0], d->a->logits), logits_of(d, &t[1], d->masked),
		per_row(d, &t[2], d->a->top_k, DL_INT, 32), fi_integer(0),
		cairn_fi_list(&t[3], d->own->row_states, DL_CUDA, DL_UINT, 8, OWN_BYTES),
	};

	return call(d, MASK, args, FI_COUNT(args));
}

static int softmax(const struct draw *d, const float *logits)
{
	struct fi_tensor t[4];
	const struct tvm_any args[] = {
		cairn_fi_list(&t[0], d->own->softmax, DL_CUDA, DL_UINT, 8, OWN_BYTES),
		logits_of(d, &t[1], logits), logits_of(d, &t[2], d->probs),
		per_row(d, &t[3], d->a->temperature, DL_FLOAT, 32), fi_number(0), fi_flag(1),
	};

	return call(d, SOFTMAX, args, FI_COUNT(args));
}

/* The draw itself. Its random numbers are those of the first row's seed and offset. */
static int draw(const struct draw *d, int which)
{
	const struct cairn_sample_args *a = d->a;
	struct tvm_any args[12];
	struct fi_tensor t[6];
	int n = 0;

	args[n++] = logits_of(d, &t[0], which == FROM_LOGITS ? a->logits : d->probs);
	args[n++] = per_row(d, &t[1], a->out, DL_INT, 32);
	if (which != FROM_LOGITS)
		args[n++] = per_row(d, &t[2], d->valid, DL_BOOL, 8);
	args[n++] = fi_none();			/* row i draws from the probabilities of row i */
	if (which == TOP_P) {
		args[n++] = per_row(d, &t[3], a->top_p, DL_FLOAT, 32);
		args[n++] = fi_number(0);
	}
	args[n++] = fi_flag(1);			/* deterministic */
	args[n++] = per_row(d, &t[4], a->seed, DL_UINT, 64);
	args[n++] = fi_integer(0);
	args[n++] = per_row(d, &t[5], a->offset, DL_UINT, 64);
	args[n++] = fi_integer(0);
	return call(d, which, args, n);
}

static int run(struct draw *d, const struct choice *c)
{
	if (!c->top_k && !c->top_p && !c->tempered)
		return draw(d, FROM_LOGITS);
	if (c->top_k)
		CAIRN_TRY(mask(d));
	CAIRN_TRY(softmax(d, c->top_k ? d->masked : d->a->logits));
	return draw(d, c->top_p ? TOP_P : FROM_PROBS);
}

int cairn_sample_fi(const struct cairn_sample_args *args, void *stream)
{
	struct cairn_sample_args a;
	struct draw d = { .a = &a, .stream = stream };
	struct choice c = { 0 };
	size_t bytes;
	int device, ret;

	CAIRN_TRY(cairn_sample_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.rows)
		return 0;
	CAIRN_TRY(cairn_sample_fi_workspace(&a, &bytes));
	if (!a.workspace || a.workspace_bytes < bytes)
		return cairn_error(EINVAL, "sample: workspace: needs %zu bytes", bytes);
	CAIRN_TRY(cairn_fi_load("sample", "sampling", names, NUM_FUNCTIONS, d.f));
	CAIRN_CUDA(cudaGetDevice(&device));
	if (device >= MAX_DEVICES)
		return cairn_error(EOPNOTSUPP, "sample: FlashInfer: more than %d devices", MAX_DEVICES);
	d.own = &owns[device];
	d.masked = a.workspace;
	d.probs = (float *)((char *)a.workspace + logit_bytes(&a));
	d.valid = (uint8_t *)a.workspace + 2 * logit_bytes(&a);
	pthread_mutex_lock(&lock);
	ret = prepare(&a, device, stream, &c);
	if (!ret)
		ret = run(&d, &c);
	pthread_mutex_unlock(&lock);
	return ret;
}
