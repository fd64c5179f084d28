// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_control - reads arbitrary bytes as a control message, a plan or an address, or as a peer's handshake
 *
 * The first byte selects what the rest is. 'm': a byte for the kind and a control message; if it is accepted,
 * its numbers must be in range. 'p': a plan, whose pages and lengths must be in range if it is accepted. 'a':
 * an address. Any other input is all that a stranger sends on a channel's socket. The channel must then not
 * open, because a stranger does not know the keys.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serving/fuzz/fuzz.h"
#include "serving/remote/control/address.h"
#include "serving/remote/control/control.h"
#include "serving/remote/attention/pass.h"

static void check_message(const uint8_t *data, size_t size)
{
	struct cairn_channel_message m = { .kind = data[0], .num_bytes = size - 1 };
	uint64_t *aligned = malloc(size + 8);

	memcpy(aligned, data + 1, size - 1);
	m.data = aligned;
	for (int to_lead = 0; to_lead < 2; to_lead++) {
		if (cairn_control_check(&m, to_lead))
			continue;
		FUZZ_HOLDS(*cairn_control_kind_name(m.kind) != '?');
		if (m.kind == CAIRN_CONTROL_ASSIGN) {
			const struct cairn_control_assign *a = m.data;

			FUZZ_HOLDS(a->first_head >= 0 && a->first_head + a->num_heads <= a->num_kv_heads);
			FUZZ_HOLDS(a->query_scalar > 0 && a->attention_factor > 0 && a->softcap >= 0);
			FUZZ_HOLDS(sizeof(*a) + a->num_bytes == m.num_bytes);
			FUZZ_HOLDS((int64_t)a->num_kv_heads * a->group <= CAIRN_MAX_HEADS);
		}
		if (m.kind == CAIRN_CONTROL_PROMPT) {
			const struct cairn_control_prompt *p = m.data;
			const int32_t *ids = (const int32_t *)(p + 1);

			FUZZ_HOLDS(p->first >= 0 && p->first < p->num_tokens && p->lease_ms > 0);
			FUZZ_HOLDS(sizeof(*p) + (size_t)p->num_tokens * sizeof(*ids) == m.num_bytes);
			for (int32_t i = 0; i < p->num_tokens; i++)
				FUZZ_HOLDS(ids[i] >= 0);
		}
		if (m.kind == CAIRN_CONTROL_FAILED || m.kind == CAIRN_CONTROL_REFUSE)
			FUZZ_HOLDS(fuzz_is_utf8(m.data, m.num_bytes) && m.num_bytes <= CAIRN_CONTROL_TEXT);
	}
	free(aligned);
}

static void check_plan(const uint8_t *data, size_t size)
{
	const struct cairn_remote_limits l = { 8, 4, 32, 16, 4 };
	int32_t *aligned = malloc(size + 8), keys;
	struct cairn_remote_pass p;

	memcpy(aligned, data, size);
	if (!cairn_remote_pass_read(&p, aligned, size, &l)) {
		FUZZ_HOLDS(cairn_remote_pass_bytes(&p) == size && p.num_rows <= l.max_rows);
		for (int32_t i = 0; i < p.num_pages; i++)
			FUZZ_HOLDS(p.kv_indices[i] >= 0 && p.kv_indices[i] < l.num_pages);
		for (int32_t i = 0; i < p.num_moves; i++)
			FUZZ_HOLDS(p.moves[i][0] >= 0 && p.moves[i][1] < l.num_pages);
		for (int32_t i = 0; i < p.batch; i++) {
			keys = (p.kv_indptr[i + 1] - p.kv_indptr[i] - 1) * l.page_size + p.last_page_len[i];
			FUZZ_HOLDS(keys >= p.qo_indptr[i + 1] - p.qo_indptr[i] && keys <= l.max_context);
		}
	}
	free(aligned);
}

static void check_address(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	union cairn_address a;

	memcpy(text, data, size);
	text[size] = 0;
	if (!cairn_address_parse(&a, text))
		FUZZ_HOLDS(a.any.sa_family == AF_INET || a.any.sa_family == AF_INET6);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t secret[CAIRN_SECRET_BYTES];
	struct cairn_control_channel *c;
	int fd[2];

	if (size >= 2 && data[0] == 'm') {
		check_message(data + 1, size - 1);
		return 0;
	}
	if (size >= 1 && data[0] == 'p') {
		check_plan(data + 1, size - 1);
		return 0;
	}
	if (size >= 1 && data[0] == 'a') {
		check_address(data + 1, size - 1);
		return 0;
	}
	FUZZ_HOLDS(!socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
	FUZZ_HOLDS(write(fd[1], data, size) == (ssize_t)size);
	shutdown(fd[1], SHUT_WR);
	FUZZ_HOLDS(cairn_channel_open(&c, fd[0], CAIRN_CHANNEL_LEAD, secret, 1000));
	close(fd[1]);
	return 0;
}
