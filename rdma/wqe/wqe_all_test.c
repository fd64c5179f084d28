// SPDX-License-Identifier: Apache-2.0
/* wqe_all_test - for random requests and completions, a GPU computes the same bytes as the host */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "rdma/wqe/wqe_all.h"

/* Runs random trials through every function on host and device and compares the results. */
static void as_on_host(struct cairn_test *t)
{
#ifdef CONFIG_CUDA
	enum { N = 4096 };
	const struct cairn_wqe_area area = { 0x7f0123456000, 0x7f6543210000, 1 << 20, 0x1234, 0x99aabbcc };
	struct cairn_wqe_all_in *in = calloc(N, sizeof(*in));
	struct cairn_wqe_all_out *host = aligned_alloc(CAIRN_WQE_BLOCK, N * sizeof(*host));
	struct cairn_wqe_all_out *device = aligned_alloc(CAIRN_WQE_BLOCK, N * sizeof(*device));
	uint64_t rng = cairn_rand(t) | 1;
	int ret;

	if (!EXPECT(t, in && host && device))
		goto out;
	memset(host, 0xa5, N * sizeof(*host));
	memset(device, 0xa5, N * sizeof(*device));
	for (int i = 0; i < N; i++) {
		cairn_wqe_trial_random(&in[i].trial, &area, &rng);
		in[i].index = cairn_wqe_random(&rng);
		in[i].value = cairn_wqe_random(&rng);
		in[i].qpn = (uint32_t)cairn_wqe_random(&rng) & 0xffffff;
		in[i].num_cqes = 1u << (i % 20);
		in[i].completion = (struct cairn_cqe_result){
			.opcode = (uint8_t)(i % 15), .syndrome = (uint8_t)(i % 0x24),
			.sent_opcode = (uint8_t)i, .wqe_counter = (uint16_t)cairn_wqe_random(&rng),
			.qpn = in[i].qpn, .user_index = (uint32_t)i, .byte_count = 3 * (uint32_t)i,
			.imm_be = ~(uint32_t)i,
		};
		cairn_wqe_all(&in[i], &host[i]);
		EXPECT(t, host[i].blocks > 0);
	}
	ret = cairn_wqe_all_device(in, device, N);
	if (ret == -ENODEV)
		cairn_skip(t, "no CUDA device");
	else if (EXPECT(t, !ret) && !EXPECT(t, !memcmp(host, device, N * sizeof(*host))))
		for (int i = 0, shown = 0; i < N && shown < 3; i++)
			if (memcmp(&host[i], &device[i], sizeof(*host)) && ++shown)
				cairn_note(t, "trial %d, opcode 0x%x", i, in[i].trial.req.opcode);
out:
	free(in);
	free(host);
	free(device);
#else
	cairn_skip(t, "built without CUDA");
#endif
}

static const struct cairn_unit units[] = {
	{ "as_on_host", as_on_host },
};

const struct cairn_family cairn_wqe_all_family = {
	.stage = "rdma", .name = "wqe_all", .units = units, .num_units = ARRAY_SIZE(units),
};
