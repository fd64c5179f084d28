/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pick_ids.cu - one thread per row
 *
 * Floor: a launch and two dependent memory round trips: from[i] together with host_ids[i], then the drawn
 * token; 8192 rows are 96 KB. The kernel may start before its predecessor has ended (programmatic dependent
 * launch) and waits for it before the first load, since the predecessor may have drawn the tokens.
 */
#include "primitives/base/launch.h"
#include "primitives/draw/pick_ids.h"
#include "primitives/ptx/ptx.cuh"

#define THREADS	256

__global__ void __launch_bounds__(THREADS)
pick_ids_kernel(const __grid_constant__ struct cairn_pick_ids_args a)
{
	int i = blockIdx.x * THREADS + threadIdx.x, from, id = -1;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (i >= a.rows)
		return;
	from = a.from[i];
	if (a.host_ids)
		id = a.host_ids[i];
	if (from >= 0)
		id = from < a.num_drawn ? a.drawn[from] : -1;
	a.ids[i] = id;
}

extern "C" int cairn_pick_ids(const struct cairn_pick_ids_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	void *params[] = { (void *)a };

	CAIRN_TRY(cairn_pick_ids_check(a));
	if (a->rows == 0)
		return 0;
	l.grid[0] = a->rows / THREADS + (a->rows % THREADS > 0);
	return cairn_launch((const void *)pick_ids_kernel, &l, params);
}
