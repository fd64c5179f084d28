// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_gather_ref - the reference; the bound is 0, because bits are copied
 */
#include "primitives/cluster/cluster_gather.h"

#include <math.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

/* Returns the element of in that element i of out is a copy of. */
static int64_t source(const struct cairn_cluster_gather_args *a, int64_t i)
{
	int64_t block = (int64_t)a->cluster_size * a->len;

	return i / (block * a->cluster_size) * block + i % block;
}

static int64_t count(const struct cairn_cluster_gather_args *a)
{
	return (int64_t)a->num_clusters * a->num_calls * a->cluster_size * a->cluster_size * a->len;
}

int cairn_cluster_gather_exact(const struct cairn_cluster_gather_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_cluster_gather_check(a));
	for (int64_t i = 0; i < count(a); i++) {
		exact[0].val[i] = cairn_load(a->in, a->dtype, source(a, i));
		exact[0].bound[i] = 0;
	}
	for (int64_t i = 0; a->cycles && i < (int64_t)a->num_clusters * a->cluster_size; i++) {
		exact[1].val[i] = 0;
		exact[1].bound[i] = INFINITY;	/* a measurement: any finite value */
	}
	return 0;
}

int cairn_cluster_gather_ref(const struct cairn_cluster_gather_args *a, void *stream)
{
	size_t esize;

	(void)stream;
	CAIRN_TRY(cairn_cluster_gather_check(a));
	esize = cairn_dtype_bytes(a->dtype);
	for (int64_t i = 0; i < count(a); i++)
		memcpy((char *)a->out + i * esize, (const char *)a->in + source(a, i) * esize, esize);
	for (int64_t i = 0; a->cycles && i < (int64_t)a->num_clusters * a->cluster_size; i++)
		a->cycles[i] = 0;
	return 0;
}
