// SPDX-License-Identifier: Apache-2.0
/* late_test - mistakes that fail on a device must also fail on the late table */
#include <signal.h>

#include "conformance/harness.h"
#include "conformance/late/late_test.h"

/* Expects that part() crashes after printing text. Under a sanitizer the process exits with a report
 * instead. */
static void dies(struct cairn_test *t, int (*part)(struct fixture *f), const char *text)
{
	char path[PATH_MAX], out[1024];
	int status;

	if (!cairn_beside("late_plugin.so", path, sizeof(path))) {
		cairn_skip(t, "late_plugin.so is not in the directory of this program");
		return;
	}
	status = in_child(path, part, out, sizeof(out));
	EXPECT(t, status == -SIGSEGV || status == -SIGABRT || (status > 0 && !strstr(out, "line ")));
	EXPECT_CONTAINS(t, out, text);
}

/* ---- memory ---- */

static int read_device(struct fixture *f)
{
	MUST(f->impl.mem_set(f->dev, 7, N, f->stream) == 0 && f->impl.stream_sync(f->stream) == 0);
	return *(volatile uint8_t *)f->dev == 7;
}

static int write_device(struct fixture *f)
{
	return *(volatile uint8_t *)(f->dev + N - 1) = 1;
}

static int read_freed_pinned(struct fixture *f)
{
	f->impl.host_free(f->pinned);
	return *(volatile uint8_t *)f->pinned;
}

static int copy_into_freed_pinned(struct fixture *f)
{
	MUST(f->impl.mem_copy(f->pinned, f->dev, N, CAIRN_COPY_TO_HOST, f->stream) == 0);
	f->impl.host_free(f->pinned);
	MUST(f->impl.stream_sync(f->stream) == -EIO);
	MUST(strstr(cairn_last_error(), "memory that was freed"));
	return 0;
}

/* An operation whose output is longer than its memory touches the closed page after it. */
static int operation_past_the_end(struct fixture *f)
{
	struct cairn_stream_args a = { .size = sizeof(a), .dst = f->dev, .bytes = 1 << 20,
				       .op = CAIRN_STREAM_WRITE };

	MUST(f->impl.stream(&a, f->stream) == 0);
	return f->impl.stream_sync(f->stream);
}

static void host_touch_dies(struct cairn_test *t)
{
	dies(t, read_device, "late: the host has touched device memory");
	dies(t, write_device, "late: the host has touched device memory");
	dies(t, read_freed_pinned, "late: the host has touched device memory, or freed memory");
	dies(t, operation_past_the_end, "late: an operation has touched memory");
	all_well(t, copy_into_freed_pinned);
}

static int fresh_is_ones(struct fixture *f)
{
	uint8_t here[N];

	memset(here, 0, N);
	MUST(f->impl.mem_copy(here, f->dev, N, CAIRN_COPY_TO_HOST, f->stream) == 0);
	for (int i = 0; i < N; i++)
		MUST(here[i] == 0xff);
	MUST((uintptr_t)f->dev % 256 == 0 && (uintptr_t)f->pinned % 256 == 0);
	return 0;
}

static int copies_stay_inside(struct fixture *f)
{
	MUST(f->impl.mem_copy(f->dev, f->pinned, N + 1, CAIRN_COPY_TO_DEVICE, f->stream) == -EINVAL);
	MUST(f->impl.mem_copy(f->pinned, f->pinned2, N, CAIRN_COPY_TO_DEVICE, f->stream) == -EINVAL);
	MUST(f->impl.mem_copy(f->dev, f->dev2, N, CAIRN_COPY_TO_HOST, f->stream) == -EINVAL);
	MUST(f->impl.mem_set(f->dev + 1, 0, N, f->stream) == -EINVAL);
	return 0;
}

static void memory(struct cairn_test *t)
{
	all_well(t, fresh_is_ones);
	all_well(t, copies_stay_inside);
}

/* ---- streams ---- */

/* A copy from host_alloc memory reads what the host writes before the sync; a copy from other host memory
 * reads what that memory held at the call. */
static int host_block_is_read_late(struct fixture *f)
{
	uint8_t mine[N], here[N];

	memset(mine, 1, N);
	MUST(f->impl.mem_copy(f->dev, f->pinned, N, CAIRN_COPY_TO_DEVICE, f->stream) == 0);
	MUST(f->impl.mem_copy(f->dev2, mine, N, CAIRN_COPY_TO_DEVICE, f->stream) == 0);
	memset(f->pinned, 2, N);
	memset(mine, 2, N);
	MUST(f->impl.mem_copy(here, f->dev, N, CAIRN_COPY_TO_HOST, f->stream) == 0);
	MUST(here[0] == 2 && here[N - 1] == 2);
	MUST(f->impl.mem_copy(here, f->dev2, N, CAIRN_COPY_TO_HOST, f->stream) == 0);
	MUST(here[0] == 1 && here[N - 1] == 1);
	return 0;
}

static int results_come_with_the_sync(struct fixture *f)
{
	MUST(f->impl.mem_set(f->dev, 3, N, f->stream) == 0);
	MUST(f->impl.mem_copy(f->pinned, f->dev, N, CAIRN_COPY_TO_HOST, f->stream) == 0);
	MUST(f->impl.event_record(f->event, f->stream) == 0);
	MUST(f->impl.mem_copy(f->pinned2, f->dev, N, CAIRN_COPY_TO_HOST, f->stream) == 0);
	MUST(f->pinned[0] == 0);
	MUST(f->impl.event_sync(f->event) == 0 && f->pinned[0] == 3 && f->pinned2[0] == 0);
	f->impl.mem_free(f->dev2);		/* synchronises, as cudaFree does */
	MUST(f->pinned2[0] == 3);
	return 0;
}

/* One stream writes, the other one reads. */
static int pass_over(struct fixture *f, int wait)
{
	MUST(f->impl.mem_set(f->dev, 4, N, f->stream) == 0);
	MUST(f->impl.event_record(f->event, f->stream) == 0);
	if (wait)
		MUST(f->impl.stream_wait(f->other, f->event) == 0);
	MUST(f->impl.mem_copy(f->pinned, f->dev, N, CAIRN_COPY_TO_HOST, f->other) == 0);
	MUST(f->impl.stream_sync(f->other) == 0);
	return 0;
}

static int without_a_wait_old_bytes(struct fixture *f)
{
	MUST(pass_over(f, 0) == 0);
	MUST(f->pinned[0] == 0xff && f->impl.stream_sync(f->stream) == 0);
	return 0;
}

/* stream_wait waits for the latest record before it, and does not run the other stream any further. */
static int with_a_wait_new_bytes(struct fixture *f)
{
	float ms = -1;

	MUST(f->impl.stream_wait(f->other, f->event) == 0);	/* never recorded: no effect */
	MUST(pass_over(f, 1) == 0);
	MUST(f->pinned[0] == 4);
	MUST(f->impl.stream_wait(f->other, f->event) == 0);
	MUST(f->impl.mem_set(f->dev, 5, N, f->stream) == 0);
	MUST(f->impl.event_record(f->event, f->stream) == 0);
	MUST(f->impl.mem_copy(f->pinned, f->dev, N, CAIRN_COPY_TO_HOST, f->other) == 0);
	MUST(f->impl.stream_sync(f->other) == 0 && f->pinned[0] == 4);
	MUST(f->impl.event_elapsed(&ms, f->event, f->event) == 0 && ms == 0);
	MUST(f->impl.mem_copy(f->pinned, f->dev, N, CAIRN_COPY_TO_HOST, f->other) == 0);
	MUST(f->impl.stream_sync(f->other) == 0 && f->pinned[0] == 5);
	return 0;
}

static int a_queue_is_not_endless(struct fixture *f)
{
	uint8_t *counts;

	MUST(f->impl.host_alloc((void **)&counts, 3000) == 0);
	memset(counts, 0, 3000);
	for (int i = 0; i < 3000; i++)
		MUST(f->impl.mem_set(counts + i, 1, 1, f->stream) == 0);
	MUST(counts[0] == 1 && counts[1000] == 1 && counts[2999] == 0);
	MUST(f->impl.stream_sync(f->stream) == 0 && counts[2999] == 1);
	return 0;
}

/* Without an event, the order of two streams is random, but the same CAIRN_LATE gives the same order. */
static int by_chance(struct fixture *f)
{
	int early = 0, late = 0;

	for (int i = 0; i < 60; i++) {
		MUST(f->impl.mem_set(f->dev, 0xff, N, f->other) == 0);
		MUST(f->impl.stream_sync(f->other) == 0);
		MUST(pass_over(f, 0) == 0);
		early += f->pinned[0] == 4;
		late += f->pinned[0] == 0xff;
		MUST(f->impl.stream_sync(f->stream) == 0);
		MUST(pass_over(f, 1) == 0 && f->pinned[0] == 4);
	}
	MUST(early + late == 60);
	dprintf(2, "%d", early);
	return 0;
}

static void streams(struct cairn_test *t)
{
	char path[PATH_MAX], out[1024], again[1024];

	all_well(t, host_block_is_read_late);
	all_well(t, results_come_with_the_sync);
	all_well(t, without_a_wait_old_bytes);
	all_well(t, with_a_wait_new_bytes);
	all_well(t, a_queue_is_not_endless);
	if (!cairn_beside("late_plugin.so", path, sizeof(path)))
		return;
	EXPECT(t, in_child(path, by_chance, out, sizeof(out)) == 0 && atoi(out) == 0);
	setenv("CAIRN_LATE", "5", 1);
	EXPECT(t, in_child(path, by_chance, out, sizeof(out)) == 0 && atoi(out) > 0 && atoi(out) < 60);
	EXPECT(t, in_child(path, by_chance, again, sizeof(again)) == 0 && !strcmp(out, again));
	unsetenv("CAIRN_LATE");
}

/* ---- graphs ---- */

static int graph_replays(struct fixture *f)
{
	void *graph;

	memset(f->pinned, 1, N);
	MUST(f->impl.graph_begin(f->stream) == 0);
	MUST(f->impl.mem_copy(f->dev, f->pinned, N, CAIRN_COPY_TO_DEVICE, f->stream) == 0);
	MUST(f->impl.mem_copy(f->pinned2, f->dev, N, CAIRN_COPY_TO_HOST, f->stream) == 0);
	MUST(f->impl.graph_end(f->stream, &graph) == 0);
	MUST(f->impl.stream_sync(f->stream) == 0 && f->pinned2[0] == 0);	/* nothing has run */
	for (uint8_t i = 2; i < 5; i++) {
		MUST(f->impl.graph_launch(graph, f->other) == 0);
		memset(f->pinned, i, N);
		MUST(f->pinned2[0] != i);
		MUST(f->impl.stream_sync(f->other) == 0 && f->pinned2[0] == i);
	}
	MUST(f->impl.graph_launch(graph, f->stream) == 0);
	memset(f->pinned, 9, N);
	f->impl.graph_destroy(graph);		/* a launch that is queued still runs */
	MUST(f->impl.stream_sync(f->stream) == 0 && f->pinned2[0] == 9);
	return 0;
}

static int graph_with_a_stale_address(struct fixture *f)
{
	void *graph;

	MUST(f->impl.graph_begin(f->stream) == 0);
	MUST(f->impl.mem_set(f->dev, 1, N, f->stream) == 0);
	MUST(f->impl.graph_end(f->stream, &graph) == 0);
	f->impl.mem_free(f->dev);
	MUST(f->impl.graph_launch(graph, f->stream) == 0);
	MUST(f->impl.stream_sync(f->stream) == -EIO);
	MUST(strstr(f->impl.last_error(), "memory that was freed"));
	MUST(f->impl.mem_set(f->dev2, 1, N, f->stream) == -EIO);	/* the failure is final */
	MUST(f->impl.stream_sync(f->other) == -EIO);
	return 0;
}

static int lost_captures(struct fixture *f)
{
	uint8_t mine[N] = { 0 };
	void *graph, *p;

	for (int i = 0; i < 6; i++) {
		MUST(f->impl.graph_begin(f->stream) == 0);
		MUST(f->impl.mem_set(f->dev, 1, N, f->stream) == 0);
		if (i == 0)
			MUST(f->impl.stream_sync(f->other) == -EINVAL);
		else if (i == 1)
			MUST(f->impl.mem_alloc(&p, N) == -EINVAL);
		else if (i == 2)
			MUST(f->impl.mem_copy(f->dev, mine, N, CAIRN_COPY_TO_DEVICE, f->stream) == -EINVAL);
		else if (i == 3)
			MUST(f->impl.stream_wait(f->stream, f->event) == -EINVAL);
		else if (i == 4)
			f->impl.mem_free(f->dev2);
		MUST((f->impl.graph_end(f->stream, &graph) == 0) == (i == 5));
	}
	f->impl.graph_destroy(graph);
	MUST(f->impl.mem_set(f->dev2, 1, N, f->stream) == 0);	/* mem_free was rejected */
	MUST(f->impl.stream_sync(f->stream) == 0);
	return 0;
}

/* Captures: the other stream copies what the first one has written, then the first one overwrites it. */
static int capture_branch(struct fixture *f, void *joined, void **graph)
{
	MUST(f->impl.graph_begin(f->stream) == 0);
	MUST(f->impl.mem_copy(f->dev, f->pinned, N, CAIRN_COPY_TO_DEVICE, f->stream) == 0);
	MUST(f->impl.event_record(f->event, f->stream) == 0);
	MUST(f->impl.stream_wait(f->other, f->event) == 0);
	MUST(f->impl.mem_copy(f->pinned2, f->dev, N, CAIRN_COPY_TO_HOST, f->other) == 0);
	if (joined) {
		MUST(f->impl.event_record(joined, f->other) == 0);
		MUST(f->impl.stream_wait(f->stream, joined) == 0);
	}
	MUST(f->impl.mem_set(f->dev, 0xee, N, f->stream) == 0);
	MUST((f->impl.graph_end(f->stream, graph) == 0) == (joined != NULL));
	return 0;
}

static int graph_with_branches(struct fixture *f)
{
	void *joined, *graph;

	MUST(f->impl.event_create(&joined) == 0);
	MUST(capture_branch(f, NULL, &graph) == 0);
	MUST(strstr(f->impl.last_error(), "has not been joined"));
	MUST(capture_branch(f, joined, &graph) == 0);
	MUST(f->impl.stream_wait(f->other, joined) == -EINVAL);	/* it stands for nothing that has run */
	MUST(f->impl.event_sync(joined) == -EINVAL);
	for (uint8_t i = 1; i < 40; i++) {
		memset(f->pinned, i, N);
		MUST(f->impl.graph_launch(graph, f->stream) == 0);
		MUST(f->impl.stream_sync(f->stream) == 0 && f->pinned2[0] == i && f->pinned2[N - 1] == i);
	}
	/* Launches follow one another, also in their branches. */
	memset(f->pinned, 50, N);
	MUST(f->impl.graph_launch(graph, f->stream) == 0 && f->impl.graph_launch(graph, f->stream) == 0);
	MUST(f->impl.stream_sync(f->stream) == 0 && f->pinned2[0] == 50);
	MUST(f->impl.event_record(joined, f->other) == 0 && f->impl.event_sync(joined) == 0);
	MUST(f->impl.graph_begin(f->stream) == 0 && f->impl.event_record(f->event, f->stream) == 0);
	MUST(f->impl.stream_wait(f->other, f->event) == 0);
	MUST(f->impl.graph_end(f->other, &graph) == -EINVAL);	/* the capture began on another stream */
	MUST(f->impl.mem_set(f->dev, 1, N, f->stream) == 0 && f->impl.stream_sync(f->stream) == 0);
	return 0;
}

/* Branches run in any order that the waits allow: without a join, this one misses the copy now and then. */
static int branches_by_chance(struct fixture *f)
{
	int early = 0;
	void *joined, *graph;

	MUST(f->impl.event_create(&joined) == 0);
	MUST(f->impl.graph_begin(f->stream) == 0);
	MUST(f->impl.event_record(f->event, f->stream) == 0);
	MUST(f->impl.stream_wait(f->other, f->event) == 0);
	MUST(f->impl.mem_set(f->dev, 7, N, f->other) == 0);
	MUST(f->impl.mem_copy(f->pinned, f->dev, N, CAIRN_COPY_TO_HOST, f->stream) == 0);
	MUST(f->impl.event_record(joined, f->other) == 0 && f->impl.stream_wait(f->stream, joined) == 0);
	MUST(f->impl.graph_end(f->stream, &graph) == 0);
	for (int i = 0; i < 60; i++) {
		MUST(f->impl.mem_set(f->dev, 0, N, f->stream) == 0);
		MUST(f->impl.graph_launch(graph, f->stream) == 0 && f->impl.stream_sync(f->stream) == 0);
		early += f->pinned[0] == 0;
	}
	MUST(early > 0 && early < 60);
	return 0;
}

static void graphs(struct cairn_test *t)
{
	char path[PATH_MAX], out[1024];

	all_well(t, graph_replays);
	all_well(t, graph_with_a_stale_address);
	all_well(t, lost_captures);
	all_well(t, graph_with_branches);
	if (!cairn_beside("late_plugin.so", path, sizeof(path)))
		return;
	setenv("CAIRN_LATE", "5", 1);
	all_well(t, graph_with_branches);
	if (!EXPECT(t, in_child(path, branches_by_chance, out, sizeof(out)) == 0))
		cairn_note(t, "%s", out);
	unsetenv("CAIRN_LATE");
}

static const struct cairn_unit units[] = {
	{ "host_touch_dies", host_touch_dies },
	{ "memory", memory },
	{ "streams", streams },
	{ "graphs", graphs },
};

const struct cairn_family cairn_late_family = {
	.stage = "conformance", .name = "late", .units = units, .num_units = ARRAY_SIZE(units),
};
