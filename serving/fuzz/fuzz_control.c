// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_control - arbitrary bytes as a control message, and as what a peer says on the socket of a channel
 *
 * Input: with 'm' as its first byte, a kind of one byte and a message, whose accepted numbers are in range.
 * Else all that a stranger sends: a channel must not open, because the stranger cannot know the keys.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serving/fuzz/fuzz.h"
#include "serving/remote/control.h"

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
		}
		if (m.kind == CAIRN_CONTROL_FAILED || m.kind == CAIRN_CONTROL_REFUSE)
			FUZZ_HOLDS(fuzz_is_utf8(m.data, m.num_bytes) && m.num_bytes <= CAIRN_CONTROL_TEXT);
	}
	free(aligned);
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
	FUZZ_HOLDS(!socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
	FUZZ_HOLDS(write(fd[1], data, size) == (ssize_t)size);
	shutdown(fd[1], SHUT_WR);
	FUZZ_HOLDS(cairn_channel_open(&c, fd[0], CAIRN_CHANNEL_LEAD, secret, 1000));
	close(fd[1]);
	return 0;
}
