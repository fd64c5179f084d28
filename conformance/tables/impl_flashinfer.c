// SPDX-License-Identifier: Apache-2.0
/*
 * impl_flashinfer - FlashInfer's compiled modules behind the same table, for side-by-side benchmarks
 *
 *   rmsnorm, silu_mul, rope   its kernels of rows (conformance/peers/fi_rows.h)
 *   sample                    its samplers (fi_sample.h)
 *   attn_dense                FlashAttention-3 (fi_attn.h)
 *   attn_paged                of one row a request, its kernels for decoding (fi_decode.h); else
 *                             FlashAttention-3
 *   mla_decode                its kernel for Hopper (fi_mla.h)
 *
 * The version string, and with it the bench record of a row of attention, names the kernel of the latest
 * call. This is a separate table, because in the table of peers attn_dense is cuDNN's. Where no module is
 * found, the operations return -EOPNOTSUPP with a text that says so.
 */
#include <stdio.h>

#include "conformance/peers/fi_attn.h"
#include "conformance/peers/fi_decode.h"
#include "conformance/peers/fi_mla.h"
#include "conformance/peers/fi_rows.h"
#include "conformance/peers/fi_sample.h"
#include "conformance/tables/tables.h"
#include "primitives/base/error.h"

#define VERSION	"0.6.17"		/* which tools/peers.sh fetches */

static char version[64] = VERSION;

static int dense(const struct cairn_attn_dense_args *a, void *stream)
{
	snprintf(version, sizeof(version), VERSION " flashattention-3");
	return cairn_attn_dense_fi(a, stream);
}

static int paged(const struct cairn_attn_paged_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_paged_check(a));
	if (a->max_qo_len == 1) {
		snprintf(version, sizeof(version), VERSION " %s", cairn_attn_decode_fi_kernel(a));
		return cairn_attn_decode_fi(a, stream);
	}
	snprintf(version, sizeof(version), VERSION " flashattention-3");
	return cairn_attn_prompt_fi(a, stream);
}

static int paged_workspace(const struct cairn_attn_paged_args *a, size_t *bytes)
{
	CAIRN_TRY(cairn_attn_paged_check_shape(a));
	*bytes = 0;
	return 0;
}

static int latent(const struct cairn_mla_decode_args *a, void *stream)
{
	snprintf(version, sizeof(version), VERSION " latent attention");
	return cairn_mla_decode_fi(a, stream);
}

const struct cairn_impl cairn_impl_flashinfer = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.name = "flashinfer",
	.version = version,
	.last_error = cairn_last_error,
	.rmsnorm = cairn_rmsnorm_fi,
	.silu_mul = cairn_silu_mul_fi,
	.rope = cairn_rope_fi,
	.sample = cairn_sample_fi,
	.sample_workspace = cairn_sample_fi_workspace,
	.attn_dense = dense,
	.attn_dense_workspace = cairn_attn_dense_fi_workspace,
	.attn_paged = paged,
	.attn_paged_workspace = paged_workspace,
	.mla_decode = latent,
	.mla_decode_workspace = cairn_mla_decode_fi_workspace,
};
