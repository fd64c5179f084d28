// SPDX-License-Identifier: Apache-2.0
/* http_rate_test - requests and events per second, with client and server in one process */
#include "conformance/harness.h"
#include "serving/http/http_load_test.h"

/* Each of 64 connections keeps one request in flight. */
static double requests_per_s(struct cairn_test *t, const char *request)
{
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ 0 }, routes, ARRAY_SIZE(routes));
	int fds[64], epoll_fd = epoll_create1(EPOLL_CLOEXEC), num = 0;
	double begin_s = now_s(), took_s;

	for (int i = 0; i < 64; i++) {
		struct epoll_event e = { .events = EPOLLIN, .data.fd = fds[i] = dial(http) };

		epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fds[i], &e);
		say(fds[i], request);
	}
	while ((took_s = now_s() - begin_s) < 2) {
		struct epoll_event events[64];
		int n = epoll_wait(epoll_fd, events, 64, 100);

		for (int i = 0; i < n; i++) {
			char bytes[1024];
			ssize_t k = recv(events[i].data.fd, bytes, sizeof(bytes) - 1, 0);

			bytes[k > 0 ? k : 0] = 0;
			if (!EXPECT(t, !strncmp(bytes, "HTTP/1.1 200 ", 13)) ||
			    !EXPECT(t, strstr(bytes, "\r\n\r\n{\"ok\":true}")))
				exit(3);
			num++;
			say(events[i].data.fd, request);
		}
	}
	for (int i = 0; i < 64; i++)
		close(fds[i]);
	close(epoll_fd);
	cairn_http_destroy(http);
	return num / took_s;
}

void http_measure_requests(struct cairn_test *t)
{
	static char post[2048];
	size_t n = (size_t)snprintf(post, sizeof(post), "POST /small HTTP/1.1\r\nHost: a\r\n"
				    "Content-Type: application/json\r\nContent-Length: 1024\r\n\r\n");

	memset(post + n, ' ', 1024);
	cairn_host_row(t, "get_64", "epoll", "\"per_s\":%.0f",
		       requests_per_s(t, "GET /small HTTP/1.1\r\nHost: a\r\n\r\n"));
	cairn_host_row(t, "post_1k_64", "epoll", "\"per_s\":%.0f", requests_per_s(t, post));
}

/* Pushes events to 64 streams, to each as fast as its client reads. */
void http_measure_events(struct cairn_test *t)
{
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ 0 }, routes, ARRAY_SIZE(routes));
	double begin_s = now_s(), took_s;
	int fds[64], full = 0;
	pthread_t reader;

	open_streams(t, http, 64, 64, fds);
	pthread_create(&reader, NULL, read_all, NULL);
	for (begin_s = now_s(); now_s() - begin_s < 2;) {
		for (int i = 0, before = full; i < 64; i++) {
			full += push_event(&load.streams[i]) != 0;
			if (i == 63 && full - before > 32)
				nap_ms(1);
		}
	}
	for (int i = 0; i < 64; i++)
		cairn_http_end(load.streams[i].x);
	atomic_store(&load.stop, true);
	pthread_join(reader, NULL);
	took_s = now_s() - begin_s;
	EXPECT(t, !load.wrong && load.ends == 64);
	cairn_host_row(t, "events_64", "epoll", "\"per_s\":%.0f,\"events\":%llu,\"full\":%d",
		       (double)load.events / took_s, (unsigned long long)load.events, full);
	for (int i = 0; i < 64; i++)
		close(fds[i]);
	cairn_http_destroy(http);
	close(load.epoll_fd);
	free(load.latency_us);
}
