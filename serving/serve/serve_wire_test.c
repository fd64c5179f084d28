// SPDX-License-Identifier: Apache-2.0
/* serve_wire_test - tests frames, and each side with a peer that violates the protocol */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "serving/serve/front/serve_front.h"

/* Frames arrive unchanged however the socket splits them; a slow reader costs memory but does not block. */
static void frames(struct cairn_test *t)
{
	static struct cairn_wire_in in;
	struct cairn_out_queue out = { 0 };
	const struct cairn_wire_frame *f;
	int32_t ids[1000], got[1000];
	int fds[2], bad, small = 2048, num = 0, left;

	EXPECT(t, !socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	for (int i = 0; i < 1000; i++)
		ids[i] = i * 3;
	for (int k = 0; k < 200; k++)
		cairn_wire_put_ids(&out, CAIRN_WIRE_IDS, 7, ids, 1000);
	left = cairn_wire_flush(&out, fds[0]);
	EXPECT(t, left == 1);
	for (int k = 0; left || cairn_out_waiting(&out) || k < 2000; k++) {
		while (cairn_wire_fill(&in, fds[1]) > 0) {
			while ((f = cairn_wire_next(&in, &bad))) {
				if (!EXPECT(t, !bad && f->kind == CAIRN_WIRE_IDS && f->request == 7))
					return;
				memcpy(got + num, f->ids, (size_t)f->count * sizeof(*got));
				num += f->count;
				if (num == 1000 && !EXPECT(t, !memcmp(got, ids, sizeof(ids))))
					return;
				num %= 1000;
			}
		}
		left = cairn_wire_flush(&out, fds[0]);
	}
	EXPECT(t, !num && !cairn_out_waiting(&out));
	/* half a frame, then a close */
	EXPECT(t, send(fds[0], &in, 33, 0) == 33 && cairn_wire_fill(&in, fds[1]) == 1);
	EXPECT(t, !cairn_wire_next(&in, &bad));
	close(fds[0]);
	EXPECT(t, cairn_wire_fill(&in, fds[1]) == -EPIPE);
	close(fds[1]);
	free(out.data);
}

/* A worker that receives invalid frames exits with an error message, never by a signal. */
static void strangers_to_a_worker(struct cairn_test *t)
{
	for (int i = 0; i < 24; i++) {
		struct cairn_wire_frame f[4] = { 0 };
		char last[4096];
		ssize_t n, at = 0;
		int fds[2], pid, status = -1, null;

		EXPECT(t, !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
		pid = fork();
		if (!pid) {
			dup2(fds[1], CAIRN_SERVE_FD);
			null = open("/dev/null", O_WRONLY);
			dup2(null, 2);
			setenv("OMP_NUM_THREADS", "1", 1);
			execl("/proc/self/exe", "cairn", "serve-worker", "--impl", "cpu", "--batch", "2",
			      NULL);
			_exit(127);
		}
		close(fds[1]);
		for (size_t k = 0; k < sizeof(f); k++)
			((unsigned char *)f)[k] = (unsigned char)(cairn_rand(t) % (i % 3 ? 256 : 4));
		for (int k = 0; k < 4; k++) {
			f[k].magic = i % 4 ? CAIRN_WIRE_MAGIC : f[k].magic;
			f[k].kind = (uint16_t)((i % 4 == 1 ? (uint64_t)i : cairn_rand(t)) %
					       CAIRN_WIRE_NUM_KINDS);
			f[k].count = i % 2 ? f[k].count : (int32_t)(cairn_rand(t) % 13);
		}
		if (i >= 20) {	/* valid frames in the wrong order */
			f[0].kind = CAIRN_WIRE_SUBMIT;
			f[0].count = 0;
			f[0].submit.num_prompt = i == 20 ? INT32_MAX : i == 21 ? -1 : 3;
			f[0].submit.num_seqs = i == 22 ? 1 << 30 : 1;
			f[0].submit.num_stop_ids = f[0].submit.num_bias = 0;
			f[1].kind = CAIRN_WIRE_IDS;
			f[1].count = 12;
			f[1].request = f[0].request;
		}
		EXPECT(t, send(fds[0], f, sizeof(f), MSG_NOSIGNAL) == sizeof(f));
		shutdown(fds[0], SHUT_WR);
		while ((n = recv(fds[0], last + at % 2048, 2048, 0)) > 0)
			at += n;
		EXPECT(t, waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) <= 1);
		if (i >= 20)
			EXPECT(t, WEXITSTATUS(status) == 1);
		close(fds[0]);
	}
}

/* The front survives 300,000 frames of every kind with random contents, some of them valid. */
static void strangers_to_the_front(struct cairn_test *t)
{
	struct serve *s = calloc(1, sizeof(*s));
	int taken = 0, refused = 0;

	s->num_slots = 8;
	s->slots = calloc(s->num_slots, sizeof(*s->slots));
	s->free_slots = calloc(s->num_slots, sizeof(*s->free_slots));
	s->in = calloc(1, sizeof(*s->in));
	s->config.vocab_size = 512;
	s->limits.max_context = 2048;
	s->fd = s->pid = -1;
	EXPECT(t, !cairn_metrics_new("m", "0", 2048, &s->metrics));
	for (int i = 0; i < 300000; i++) {
		struct cairn_wire_frame f = { .magic = CAIRN_WIRE_MAGIC };

		for (size_t k = 8; k < sizeof(f); k += 4)
			((int32_t *)&f)[k / 4] = (int32_t)(cairn_rand(t) % 12) - (cairn_rand(t) % 8 == 0);
		f.kind = (uint16_t)(1 + cairn_rand(t) % (CAIRN_WIRE_NUM_KINDS - 1));
		f.count = (int32_t)(cairn_rand(t) % 7);
		f.request = cairn_rand(t) % 10;
		if (f.kind == CAIRN_WIRE_FAILED || (f.kind == CAIRN_WIRE_TEXT && !s->missing))
			continue;
		/* requests whose clients have left */
		if (i % 8 == 0) {
			uint32_t which = (uint32_t)(cairn_rand(t) % s->num_slots);

			s->num_free -= !s->slots[which].request && s->num_free;
			s->slots[which] = (struct serve_slot){ .request = which, .num_seqs = 3, .num_open = 3,
							       .open = { 7 } };
		}
		if (s->num_free == s->num_slots)
			s->num_free = 0;
		atomic_store(&s->state, SERVE_READY);
		if (serve_take_frame(s, &f)) {
			refused++;
			s->missing = 0;
		} else {
			taken++;
		}
		if (!EXPECT(t, s->missing >= 0 && s->num_free <= s->num_slots))
			break;
	}
	cairn_note(t, "%d taken, %d refused", taken, refused);
	EXPECT(t, taken > 30000 && refused > 30000);
	cairn_metrics_free(s->metrics);
	free(s->out.data);
	free(s->in);
	free(s->slots);
	free(s->free_slots);
	free(s);
}

static const struct cairn_unit units[] = {
	{ "frames", frames }, { "strangers_to_a_worker", strangers_to_a_worker },
	{ "strangers_to_the_front", strangers_to_the_front },
};

const struct cairn_family cairn_serve_wire_family = {
	.stage = "serving", .name = "serve_wire", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 120,
	.waits = 1,
};
