// SPDX-License-Identifier: Apache-2.0
/*
 * http_load_test - idle connections, streams and stalled readers, all at once
 *
 * CAIRN_HTTP_SECONDS: duration of the measurement's streams in seconds (20).
 */
#include <sys/resource.h>

#include "conformance/harness.h"
#include "serving/http/http_load_test.h"

static long rss_kib(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long size = 0, rss = 0;

	if (f) {
		if (fscanf(f, "%ld %ld", &size, &rss) != 2)
			rss = 0;
		fclose(f);
	}
	return rss * (sysconf(_SC_PAGESIZE) / 1024);
}

struct result {
	double seconds;
	uint64_t events, stalled;
	long rss_kib, growth_kib, peak_kib;
	int p50_us, p99_us;
};

/*
 * Sends 50 events per second to each reading client and 64 times as many to each stalled one, dropping those
 * that do not fit. Readers must receive every event, stalled clients must be cut, and memory must stay
 * constant once the buffers are full.
 */
static void mixed(struct cairn_test *t, int num_idle, int num_streams, int num_stalled, double seconds,
		  int stall_ms, struct result *out)
{
	struct cairn_http_options o = {
		.stall_timeout_ms = stall_ms, .idle_timeout_ms = (int)(seconds * 1e3) + 60000,
	};
	struct cairn_http *http = serve(t, &o, routes, ARRAY_SIZE(routes));
	int *idle = calloc((size_t)num_idle, sizeof(int)), fds[MAX_STREAMS], num_cut = 0;
	double begin_s, next_s, warm_s;
	bool full[MAX_STREAMS] = { false };
	int num_full = 0;
	struct cairn_http_stats stats;
	uint64_t pushed = 0;
	long rss;
	static struct reply r;
	pthread_t reader;

	for (int i = 0; i < num_idle; i++)
		idle[i] = dial(http);
	open_streams(t, http, num_streams, num_streams - num_stalled, fds);
	pthread_create(&reader, NULL, read_all, NULL);
	begin_s = next_s = now_s();
	warm_s = begin_s + seconds / 3;
	/* on a loaded machine, continue until the last stalled client is cut */
	while (now_s() < begin_s + seconds || (num_cut < num_stalled && now_s() < begin_s + seconds + 30)) {
		double ahead_s = next_s - now_s();

		nap_ms(ahead_s > 0 ? 1 + (int)(ahead_s * 1e3) : 0);
		next_s += 0.02;
		for (int i = 0; i < num_streams; i++) {
			struct stream *s = &load.streams[i];
			int ret = 0;

			for (int k = i < load.num_readers ? 1 : 64; k && s->x && !ret; k--)
				ret = push_event(s);
			if (ret && i >= load.num_readers && !full[i]) {
				full[i] = true;
				num_full++;
			}
			if (ret == -EPIPE) {
				cairn_http_end(s->x);
				s->x = NULL;
				num_cut++;
			}
		}
		rss = rss_kib();
		out->peak_kib = rss > out->peak_kib ? rss : out->peak_kib;
		if (now_s() > warm_s && num_full == num_stalled && !out->rss_kib)
			out->rss_kib = rss;
	}
	out->growth_kib = rss_kib() - out->rss_kib;
	out->seconds = now_s() - begin_s;
	for (int i = 0; i < num_streams; i++) {
		if (load.streams[i].x)
			cairn_http_end(load.streams[i].x);
		if (i < load.num_readers)
			pushed += load.streams[i].seq + load.streams[i].dropped;
	}
	atomic_store(&load.stop, true);
	pthread_join(reader, NULL);
	out->events = load.events;
	out->stalled = (uint64_t)num_cut;
	out->p50_us = percentile_us(0.5);
	out->p99_us = percentile_us(0.99);
	EXPECT(t, load.events == pushed && !load.wrong && load.ends == (uint64_t)load.num_readers);
	EXPECT(t, num_cut == num_stalled);
	for (int i = 0; i < num_idle; i++) {	/* idle connections are still served */
		say(idle[i], "GET /small HTTP/1.1\r\nHost: a\r\n\r\n");
		EXPECT(t, read_reply(idle[i], &r) == 200);
		close(idle[i]);
	}
	cairn_http_stats(http, &stats);
	EXPECT(t, stats.stalled == (uint64_t)num_stalled && !stats.refused);
	for (int i = 0; i < num_streams; i++)
		close(fds[i]);
	cairn_http_destroy(http);
	close(load.epoll_fd);
	free(load.latency_us);
	free(idle);
	cairn_note(t, "%llu events, p50 %d us, p99 %d us, resident %ld KiB, growth %ld KiB, at most %ld",
		   (unsigned long long)out->events, out->p50_us, out->p99_us, out->rss_kib, out->growth_kib,
		   out->peak_kib);
#ifndef CAIRN_SANITIZED
	EXPECT(t, out->growth_kib < 1024);
#endif
}

static void mixed_small(struct cairn_test *t)
{
	struct result r = { 0 };

	mixed(t, 100, 40, 5, 2.5, 700, &r);
}

void http_measure_mixed(struct cairn_test *t)
{
	const char *env = getenv("CAIRN_HTTP_SECONDS");
	double seconds = env ? atof(env) : 20;
	struct rlimit files = { 0, 0 };
	struct result r = { 0 };

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (files.rlim_cur < 3000) {
		cairn_skip(t, "needs 3000 file descriptors, the limit is %llu",
			   (unsigned long long)files.rlim_cur);
		return;
	}
	mixed(t, 1000, 256, 20, seconds < 10 ? 10 : seconds, 5000, &r);
	cairn_host_row(t, "idle1000_streams256_stalled20", "epoll", "\"seconds\":%.1f,\"events\":%llu,"
		       "\"lost\":0,\"p50_us\":%d,\"p99_us\":%d,\"rss_kib\":%ld,\"growth_kib\":%ld,"
		       "\"peak_kib\":%ld,\"cut\":%llu",
		       r.seconds, (unsigned long long)r.events, r.p50_us, r.p99_us, r.rss_kib, r.growth_kib,
		       r.peak_kib, (unsigned long long)r.stalled);
}

static const struct cairn_unit units[] = { { "mixed_small", mixed_small } };

const struct cairn_family cairn_http_load_family = {
	.stage = "serving", .name = "http_load", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
