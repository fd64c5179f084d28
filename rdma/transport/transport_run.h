/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_run - runs conformance cases of transport.h in the program transport_end; include
 * conformance/harness.h first
 *
 * The cases are in transport_cases*.c. Both ends run in one process, or each in its own. A case that a back
 * end does not support is skipped, with its name.
 */
#ifndef CAIRN_TRANSPORT_RUN_H
#define CAIRN_TRANSPORT_RUN_H

#include <sys/socket.h>

#include "rdma/card/card.h"
#include "rdma/nic/nic_child.h"

#ifdef CONFIG_CUDA
#include <cuda_runtime_api.h>
#endif

static inline int num_gpus(void)
{
	int num = 0;

#ifdef CONFIG_CUDA
	if (cudaGetDeviceCount(&num) != cudaSuccess)
		num = 0;
	cudaGetLastError();
#endif
	return num;
}

static inline void remarks(struct cairn_test *t, struct child *c)
{
	char text[8192], *line, *save;

	text_of(c->out, text, sizeof(text));
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (strncmp(line, "ok ", 3))
			cairn_note(t, "%s", line);
}

/* A family's settings: the words of transport_end after the case's name. */
struct setting {
	const char *backend, *options, *adversary;
	/* model: needs an RDMA device, either the NIC model or the card named on the command line */
	int model, processes, gpus;
};

static inline void launch(struct cairn_test *t, struct child *c, const struct setting *s, const char *name,
			  const char *more, const char *out)
{
	const char *card = s->model ? cairn_card_device() : NULL;
	char words[384];

	snprintf(words, sizeof(words), "transport_end %s %s %s %s %s%s", s->backend, name, s->options, more,
		 card ? "device=" : "", card ? card : "");
	start_child(t, c, words, s->model && !card, s->adversary, out);
}

static inline void judge(struct cairn_test *t, struct child *c, int want)
{
	char text[8192], *why;

	if (c->status == 77) {
		text_of(c->out, text, sizeof(text));
		why = strstr(text, ": ");
		cairn_skip(t, "%.*s", why ? (int)strcspn(why + 2, "\n") : 3, why ? why + 2 : "?");
		return;
	}
	if (!EXPECT(t, c->status == want))
		cairn_note(t, "status %d of %s%s", c->status, c->out,
			   c->status == 127 ? ": no transport_end in this program's directory" : "");
	remarks(t, c);
}

static inline void run_processes(struct cairn_test *t, const struct setting *s, const char *name)
{
	static const char *const outs[] = { "rank0", "rank1" };
	int fds[2], dies = !strncmp(name, "peer_gone", 9), i;
	struct child c[2];
	char more[64];

	if (!EXPECT(t, !socketpair(AF_UNIX, SOCK_STREAM, 0, fds)))
		return;
	for (i = 0; i < 2; i++) {
		snprintf(more, sizeof(more), "rank=%d fd=%d,%d", i, fds[0], fds[1]);
		launch(t, &c[i], s, name, more, outs[i]);
	}
	close(fds[0]);
	close(fds[1]);
	for (i = 0; i < 2; i++)
		finish(t, &c[i]);
	judge(t, &c[0], 0);
	if (c[0].status != 77)
		judge(t, &c[1], dies ? -SIGKILL : 0);
}

static inline void run(struct cairn_test *t, const struct setting *s, const char *name)
{
	struct child c;

	if (s->gpus > num_gpus()) {
		cairn_skip(t, "needs %d CUDA device%s", s->gpus, s->gpus > 1 ? "s" : "");
		return;
	}
	if ((s->model || strstr(s->options, "bare")) && missing(t, "transport_end"))
		return;
	if (s->adversary && cairn_card_device()) {
		cairn_skip(t, "the adversary is the model's");
		return;
	}
	if (s->processes) {
		run_processes(t, s, name);
	} else {
		launch(t, &c, s, name, "", "out");
		finish(t, &c);
		judge(t, &c, 0);
	}
	if (s->model)
		EXPECT(t, reported(t, "rules") == 0);
}

#define CASES(C)	\
	C(payload_before_signal) C(no_torn_reads) C(words) C(outstanding) C(index_wraps) C(sizes)	\
	C(two_channels) C(both_ways) C(flush_is_done) C(values_wrap) C(slots) C(repeatable) C(refusals)	\
	C(bad_blobs) C(time_out) C(key_released) C(bounds_at_the_far_end) C(reset) C(peer_gone_put)	\
	C(peer_gone_wait) C(never_connected)	\
	C(stream_rows) C(stream_chain) C(stream_replays) C(stream_locks) C(stream_time_out)	\
	C(stream_stops) C(stream_paced)
#define DEVICE_CASES(C)	\
	C(device_payload) C(device_stream) C(device_words) C(device_grid) C(device_grid_stream)	\
	C(device_bulk) C(device_time_out)						\
	C(device_to_host) C(host_to_device) C(host_device_host)
/* Cases in which an adversary can disturb the writes to the far end's memory. */
#define ORDER_CASES(C)	\
	C(payload_before_signal) C(no_torn_reads) C(words) C(outstanding) C(both_ways) C(flush_is_done)	\
	C(sizes) C(two_channels) C(reset)

#define UNIT(name)	{ #name, UNIT_NAME(name) },
#define FAMILY(name_, list, seconds, ...)						\
	const struct cairn_family cairn_##name_##_family = {				\
		.stage = "rdma", .name = #name_, .units = list, .num_units = ARRAY_SIZE(list),	\
		.cost_s = seconds, ##__VA_ARGS__						\
	}

#endif
