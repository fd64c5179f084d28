// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_gather_cpu - runs the kernels' schedule on the CPU, one thread for all ranks of a cluster
 *
 * Every message of cluster_schedule.h is copied from its sender's unfinished result to its receiver's. A
 * block that is sent before it has arrived, or to a wrong place, therefore makes the result wrong.
 */
#include "primitives/cluster/cluster_gather.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

/*
 * out: [n, n, block] bytes; in: [n, block]; wire: [n, n, block], the messages in flight. In each step all
 * ranks send before any of them receives.
 */
static void one_call(char *out, const char *in, char *wire, int algo, int n, size_t block)
{
	for (int b = 0; b < n; b++)
		memcpy(out + ((size_t)b * n + b) * block, in + b * block, block);
	for (int step = 0; step < cairn_cluster_gather_steps(algo, n); step++) {
		for (int b = 0; b < n; b++) {
			struct cairn_cluster_msg m = cairn_cluster_gather_msg(algo, n, b, step);

			for (int k = 0; k < m.send_count; k++)
				memcpy(wire + ((size_t)m.to * n + k) * block,
				       out + ((size_t)b * n + cairn_cluster_wrap(m.send_first, k, n)) * block,
				       block);
		}
		for (int b = 0; b < n; b++) {
			struct cairn_cluster_msg m = cairn_cluster_gather_msg(algo, n, b, step);

			for (int k = 0; k < m.recv_count; k++)
				memcpy(out + ((size_t)b * n + cairn_cluster_wrap(m.recv_first, k, n)) * block,
				       wire + ((size_t)b * n + k) * block, block);
		}
	}
}

int cairn_cluster_gather_cpu(const struct cairn_cluster_gather_args *a, void *stream)
{
	int64_t num_groups;
	int failed = 0, algo;
	size_t block, n;

	(void)stream;
	CAIRN_TRY(cairn_cluster_gather_check(a));
	n = a->cluster_size;
	block = a->len * cairn_dtype_bytes(a->dtype);
	num_groups = (int64_t)a->num_clusters * a->num_calls;
	algo = a->algo == CAIRN_CLUSTER_OFFCHIP ? CAIRN_CLUSTER_ONESHOT : a->algo;
#pragma omp parallel for schedule(static) reduction(|:failed)
	for (int64_t k = 0; k < num_groups; k++) {
		char *wire = malloc(n * n * block);

		if (!wire) {
			failed = 1;
			continue;
		}
		one_call((char *)a->out + k * n * n * block, (const char *)a->in + k * n * block, wire, algo,
			 (int)n, block);
		free(wire);
	}
	if (failed)
		return cairn_error(ENOMEM, "cluster_gather: no memory for %d ranks of %d", a->cluster_size,
				   a->len);
	for (int64_t i = 0; a->cycles && i < (int64_t)a->num_clusters * a->cluster_size; i++)
		a->cycles[i] = 0;
	return 0;
}
