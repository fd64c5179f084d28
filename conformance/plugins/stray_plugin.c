// SPDX-License-Identifier: Apache-2.0
/*
 * stray_plugin - breaks a rule of abi.h in the way that $CAIRN_STRAY_PLUGIN names, and is otherwise correct
 *
 * Results are correct in the first call of a shape, and memory outside the buffers is touched only as the
 * name says. With a name that begins with device_ the plug-in poses as a device: memory is set, and
 * operations run, when the stream is synchronised.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/abi.h"
#include "conformance/tables/offer.h"

#define MAX_QUEUE	128
#define EXTRA		((size_t)512)	/* bytes that our workspaces have beyond those of the cpu table */

static int is(const char *how)
{
	const char *now = getenv("CAIRN_STRAY_PLUGIN");

	return now && !strcmp(now, how);
}

static volatile char sink;

static int embed(const struct cairn_embedding_args *a)
{
	size_t row = (size_t)a->dim * (a->dtype == 0 ? 4 : 2), bytes = row * (size_t)a->rows;
	static int calls, rows, dim;
	static const void *last_out, *last_table;
	static char last[1 << 16];
	struct cairn_embedding_args known_args;
	char *out = a->out;
	int ret, known, after_itself;

	if (is("exact_size") && a->size != sizeof(*a))
		return -EINVAL;
	if (is("refuses_longer") && a->size != sizeof(*a))
		return -EOPNOTSUPP;
	if (is("takes_unknown")) {
		cairn_copy_args(&known_args, a, sizeof(known_args));
		a = &known_args;
	}
	calls = a->rows == rows && a->dim == dim ? calls + 1 : 1;
	rows = a->rows;
	dim = a->dim;
	known = calls > 1 && a->out == last_out && a->table == last_table && bytes <= sizeof(last);
	after_itself = known && !memcmp(out, last, bytes);
	ret = cairn_offer.cpu->embedding(a, NULL);
	if (ret || !bytes)
		return ret;
	if (is("after_itself") && after_itself)
		out[0] ^= 1;
	if (is("reads_past"))
		sink = ((const char *)a->table)[row * (size_t)a->vocab];
	if (is("reads_next_id"))
		sink = ((const volatile char *)(a->ids + a->rows))[0];
	if (is("reads_another_row") && a->vocab > 2)
		sink = ((const char *)a->table)[2 * row];
	if (is("reads_before"))
		sink = ((const char *)a->table)[-64];
	if (is("writes_past"))
		out[bytes + 2048] = 1;
	if (is("writes_before"))
		out[-2048] = 1;
	if (is("from_the_third_on") && calls >= 3)
		out[0] ^= 1;
	if (is("every_second") && calls % 2 == 0)
		out[bytes - 1] ^= 1;
	if (is("remembers") && known)
		memcpy(out, last, bytes);
	if (is("adds_what_is_behind"))
		out[0] ^= out[bytes + 64] & 1;
	if (!known && bytes <= sizeof(last))
		memcpy(last, out, bytes);
	last_out = a->out;
	last_table = a->table;
	return 0;
}

/* ---- a device ---- */

static struct work {
	void *dst;			/* NULL: the operation */
	int byte;
	size_t bytes;
	const struct cairn_embedding_args *args;
	struct cairn_embedding_args copy;
} queue[MAX_QUEUE];
static int num;

static int flush(void *stream)
{
	int ret = 0;

	(void)stream;
	for (int i = 0; i < num && !ret; i++)
		if (queue[i].dst)
			memset(queue[i].dst, queue[i].byte, queue[i].bytes);
		else
			ret = embed(queue[i].args ? queue[i].args : &queue[i].copy);
	num = 0;
	return ret;
}

static int copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	int ret = flush(stream);

	return ret ? ret : cairn_offer.host->mem_copy(dst, src, bytes, kind, NULL);
}

static int set(void *dst, int byte, size_t bytes, void *stream)
{
	if (num == MAX_QUEUE && flush(stream))
		return -EIO;
	queue[num++] = (struct work){ .dst = dst, .byte = byte, .bytes = bytes };
	return 0;
}

static int embedding(const struct cairn_embedding_args *a, void *stream)
{
	int ret;

	if (!getenv("CAIRN_STRAY_PLUGIN") || strncmp(getenv("CAIRN_STRAY_PLUGIN"), "device_", 7) ||
	    is("device_ignores_the_stream"))
		return embed(a);
	ret = is("device_refuses") ? -EOPNOTSUPP : cairn_offer.embedding_check(a);
	if (!ret && num == MAX_QUEUE)
		ret = flush(stream);
	if (ret || !a->rows)
		return ret;
	queue[num] = (struct work){ .args = is("device_keeps_args") ? a : NULL };
	cairn_copy_args(&queue[num++].copy, a, sizeof(*a));
	return 0;
}

/* ---- an operation with a workspace ---- */

static int gemm_workspace(const struct cairn_gemm_args *a, size_t *bytes)
{
	*bytes = EXTRA;
	if (is("query_crashes"))
		sink = *(const char *)a->a;
	if (is("query_depends_on_pointers") && a->a)
		*bytes += 256;
	if (is("workspace_of_a_pebibyte"))
		*bytes = (size_t)1 << 50;
	return is("query_needs_pointers") ? cairn_offer.gemm_check(a) : cairn_offer.gemm_check_shape(a);
}

static int gemm(const struct cairn_gemm_args *a, void *stream)
{
	int ret = cairn_offer.cpu->gemm(a, stream);
	char *workspace = a->workspace;

	if (ret || !a->m || !workspace)
		return ret;
	if (is("workspace_past"))
		workspace[EXTRA] = 1;
	if (is("workspace_before"))
		workspace[-256] = 1;
	/* a counter that was 0 when the workspace was new */
	if (is("counts_in_workspace") && ++workspace[0] == 4)
		*(char *)a->out ^= 1;
	return 0;
}

static int small_device(struct cairn_device_info *info)
{
	int ret = cairn_offer.host->device_info(info);

	info->mem_bytes = 1 << 30;
	return ret;
}

/* ---- collectives without texts; a plan that checks nothing ---- */

static int plan_unchecked(const struct cairn_attn_bsr_args *a, void *stream)
{
	(void)a;
	(void)stream;
	return 0;
}

static void add_operations(struct cairn_impl *impl)
{
	const struct cairn_impl *cpu = cairn_offer.cpu;

	if (is("no_texts")) {
		impl->comm_open = cpu->comm_open;
		impl->comm_heap = cpu->comm_heap;
		impl->comm_error = cpu->comm_error;
		impl->comm_abort = cpu->comm_abort;
		impl->comm_close = cpu->comm_close;
		impl->send_recv = cpu->send_recv;
	}
	if (is("plan_unchecked")) {
		impl->attn_bsr = cpu->attn_bsr;
		impl->attn_plan = plan_unchecked;
	}
}

const struct cairn_impl *cairn_impl_get(uint32_t abi_version)
{
	static struct cairn_impl impl = {
		.size = sizeof(impl), .abi_version = CAIRN_ABI_VERSION, .flags = CAIRN_IMPL_HOST_MEM,
		.name = "stray", .version = "1", .embedding = embedding, .gemm = gemm,
		.gemm_workspace = gemm_workspace,
	};
	const size_t from = offsetof(struct cairn_impl, device_info);
	const size_t end = offsetof(struct cairn_impl, stream);
	const char *how = getenv("CAIRN_STRAY_PLUGIN");

	add_operations(&impl);
	if (how && !strncmp(how, "device_", 7)) {
		memcpy((char *)&impl + from, (const char *)cairn_offer.host + from, end - from);
		impl.flags = 0;
		impl.mem_copy = copy;
		impl.mem_set = set;
		impl.stream_sync = flush;
		if (is("device_of_1_gib"))
			impl.device_info = small_device;
	}
	return abi_version == CAIRN_ABI_VERSION ? &impl : NULL;
}
