/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ladder - attention kernels in steps, each simple enough to understand by itself (README.md)
 *
 * ladder_attn1() to ladder_attn5() are attn_dense (attn_dense.h) with qk_dim and v_dim 128, no window, no
 * softcap and no limit of SMs. ladder_decode1() to ladder_decode4() are attn_paged (attn_paged.h) with
 * max_qo_len up to 1, head_dim 128, no window, no softcap and no limit of SMs; from step 2 on, the number of
 * query heads of a KV head is limited, too. Anything else gives -EOPNOTSUPP. The rest of the contracts holds.
 */
#ifndef CAIRN_LADDER_H
#define CAIRN_LADDER_H

#include "fused/attention/paged/attn_paged.h"
#include "fused/attention/dense/attn_dense.h"

#define LADDER_DIM	128
#define LADDER_CTAS	4	/* most CTAs per SM for which the workspace has room */
#define LADDER_GROUP	8	/* the most query heads of a KV head in ladder_decode2() and later steps */

/* A forward kernel: instances for f16 and bf16, query rows of a CTA, its threads, dynamic shared memory. */
struct ladder_kernel {
	const void *kernel[2];
	int rows, threads;
	size_t smem;
};

#ifdef __cplusplus
extern "C" {
#endif

int ladder_attn1(const struct cairn_attn_dense_args *args, void *stream);
int ladder_attn2(const struct cairn_attn_dense_args *args, void *stream);
int ladder_attn3(const struct cairn_attn_dense_args *args, void *stream);
int ladder_attn4(const struct cairn_attn_dense_args *args, void *stream);
int ladder_attn5(const struct cairn_attn_dense_args *args, void *stream);

int ladder_decode1(const struct cairn_attn_paged_args *args, void *stream);
int ladder_decode2(const struct cairn_attn_paged_args *args, void *stream);
int ladder_decode3(const struct cairn_attn_paged_args *args, void *stream);
int ladder_decode4(const struct cairn_attn_paged_args *args, void *stream);
/* The workspace of ladder_decode3() and ladder_decode4(). */
int ladder_decode_workspace(const struct cairn_attn_paged_args *args, size_t *bytes);

/* ---- for the steps ---- */

/* Checks the arguments and copies them to *a with all strides filled in. */
int ladder_take(const struct cairn_attn_dense_args *args, struct cairn_attn_dense_args *a);
/* Launches one CTA for each tile of rows, query head and request (x, y, z); none if there is no row. */
int ladder_launch(const struct ladder_kernel *k, const struct cairn_attn_dense_args *a, void **params,
		  void *stream);
/* Checks the arguments, with up to max_group query heads for each KV head. Sets *busy if there are rows. */
int ladder_check_decode(const struct cairn_attn_paged_args *args, int max_group, int *busy);
/* The same for steps that split keys; also checks the workspace. */
int ladder_check_split(const struct cairn_attn_paged_args *args, int *busy);
/*
 * Returns the number of parts into which the keys of a request are split, or -errno. There are enough
 * parts to give every SM `ctas` CTAs, up to LADDER_CTAS, but each part has at least 128 keys.
 */
int ladder_splits(const struct cairn_attn_paged_args *args, int ctas);
/* Merges the states of the splits in the workspace into out and lse. */
int ladder_merge(const struct cairn_attn_paged_args *args, int splits, void *stream);

#ifdef __cplusplus
}
#endif
#endif
