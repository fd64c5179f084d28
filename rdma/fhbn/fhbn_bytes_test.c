// SPDX-License-Identifier: Apache-2.0
/* fhbn_bytes_test.c - compares the bytes that a kernel writes into a ring with those of other producers */
#include "conformance/harness.h"
#include "rdma/fhbn/fhbn_pair.h"

#ifdef CONFIG_CUDA

static struct cairn_fhbn_request any_request(struct cairn_test *t)
{
	static const uint32_t opcodes[] = {
		CAIRN_WQE_WRITE, CAIRN_WQE_WRITE_IMM, CAIRN_WQE_READ, CAIRN_WQE_NOP,
	};
	uint32_t opcode = opcodes[cairn_rand(t) % 4], rkey = (uint32_t)cairn_rand(t);
	uint64_t remote = cairn_rand(t), local = cairn_rand(t);
	struct cairn_fhbn_request r = cairn_fhbn_request(opcode, remote, rkey, local, ~rkey,
							 (uint32_t)cairn_rand(t) & 0xffff);

	if (cairn_rand(t) & 1)
		return cairn_fhbn_write_u64(remote, rkey, local);
	r.imm_be = opcode == CAIRN_WQE_WRITE_IMM ? (uint32_t)cairn_rand(t) : 0;
	return r;
}

/*
 * Without a card: a GPU and a CPU post the same requests into separate rings, with register and doorbell
 * records in ordinary memory. Every byte must be equal.
 */
static void bytes_as_on_cpu(struct cairn_test *t)
{
	enum { BLOCKS = 256, BATCHES = 80, BYTES = 65536, CQ = 16384, REST = 49152 };
	struct cairn_fhbn_request r[BATCHES * CAIRN_FHBN_MAX_BATCH];
	uint32_t batch[BATCHES], num = 0;
	uint8_t *cpu = aligned_alloc(4096, BYTES), *back = malloc(BYTES), *gpu = NULL;

	for (int i = 0; i < BATCHES; i++) {
		batch[i] = 1 + (uint32_t)(cairn_rand(t) % 3);
		for (uint32_t k = 0; k < batch[i]; k++)
			r[num++] = any_request(t);
	}
	if (fhbn_gpu_alloc(BYTES, (void **)&gpu))
		cairn_skip(t, "%s", cairn_last_error());
	for (uint32_t mode = 0; gpu && mode < 2 * CAIRN_FHBN_QUIET; mode++) {
		struct cairn_fhbn_qp q = {
			.sq = { (void *)gpu, BLOCKS, 0xabcdef }, .record = (void *)(gpu + REST),
			.reg = { (void *)(gpu + REST + 512), (void *)(gpu + REST + 1024) },
			.cq = (void *)(gpu + CQ), .cq_record = (void *)(gpu + REST + 64),
			.state = (void *)(gpu + REST + 128), .timeout_ns = TIMEOUT, .num_cqes = BLOCKS,
			.mode = mode,
		};

		memset(cpu, 0xa5, CQ);
		memset(cpu + CQ, 0xff, REST - CQ);
		memset(cpu + REST, 0, BYTES - REST);
		EXPECT(t, !fhbn_gpu_copy(gpu, cpu, BYTES));
		EXPECT(t, !fhbn_drive_list(&q, r, batch, BATCHES));
		q.sq.segs = (void *)cpu;
		q.record = (void *)(cpu + REST);
		q.reg[0] = (void *)(cpu + REST + 512);
		q.reg[1] = (void *)(cpu + REST + 1024);
		q.cq = (void *)(cpu + CQ);
		q.state = (void *)(cpu + REST + 128);
		for (uint32_t i = 0, at = 0; i < BATCHES; at += batch[i++])
			EXPECT(t, !cairn_fhbn_host_post(&q, &r[at], batch[i], NULL));
		EXPECT(t, !fhbn_gpu_copy(back, gpu, BYTES));
		EXPECT(t, q.state->rung == num);
		for (int i = 0, shown = 0; i < BYTES && shown < 3; i++)
			if (!EXPECT(t, back[i] == cpu[i]) && ++shown)
				cairn_note(t, "mode %#x: byte %d of block %d", mode, i % 64, i / 64);
	}
	fhbn_gpu_free(gpu);
	free(back);
	free(cpu);
}

/*
 * The third producer: NVIDIA's own device code on the same model. It leaves stale register contents in the
 * reserved bytes of its segments, so it may break the rules about these bytes, but no others.
 */
static void gpunetio(struct cairn_test *t)
{
	const struct cairn_fhbn_qp_args args = {
		.poster = CAIRN_FHBN_BY_GPU_LOCAL, .num_blocks = 64, .timeout_ns = TIMEOUT,
	};
	struct fhbn_drive_result result;
	struct fhbn_memory memory;
	struct nic_stats before;
	struct pair m;
	int ret;

	ret = pair_open(&m, NULL, 1, &args, 1, 1);
	if (ret == -ENODEV)
		cairn_skip(t, "%s", cairn_last_error());
	else
		EXPECT(t, !ret);
	if (ret)
		return;
	before = *pair_stats();
	EXPECT(t, !pair_for_gpu(&m, &memory));
	ret = fhbn_drive_gpunetio(cairn_fhbn_queue_view(m.queue[0]), &memory, 256, 100, &result);
	if (ret == -EOPNOTSUPP)
		cairn_skip(t, "%s", cairn_last_error());
	if (ret != -EOPNOTSUPP && EXPECT(t, !ret)) {
		EXPECT(t, !result.ret && !result.torn && result.posted == 100);
		EXPECT(t, pair_rules_but_reserved(&before) == 0);
		EXPECT(t, pair_stats()->requests - before.requests == 200);
		EXPECT(t, pair_stats()->doorbell_wqe == before.doorbell_wqe);
		cairn_note(t, "%d doorbells seen, %d of them early",
			   (int)(pair_stats()->doorbells - before.doorbells),
			   (int)(pair_stats()->doorbell_early - before.doorbell_early));
	}
	pair_close(&m);
}

#define UNIT(name) { #name, name }
#else

static void needs_cuda(struct cairn_test *t)
{
	cairn_skip(t, "built without CUDA");
}

#define UNIT(name) { #name, needs_cuda }
#endif

static const struct cairn_unit units[] = {
	UNIT(bytes_as_on_cpu), UNIT(gpunetio),
};

const struct cairn_family cairn_fhbn_bytes_family = {
	.stage = "rdma", .name = "fhbn_bytes", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 60,
};
