// SPDX-License-Identifier: Apache-2.0
/* device_cache - unit tests with made-up questions, on the host */
#include "primitives/base/device_cache.h"

#include <pthread.h>
#include <string.h>

#include "conformance/harness.h"

enum { THREADS = 8, QUESTIONS = 1000, DEVICES = 4, INTS = 3 };

/* arg of ask(); its address is the kernel, so that each test asks questions of its own */
struct asked {
	struct cairn_device_question q;
	int *calls, ret;
};

static int ask(const void *arg, int32_t *answer)
{
	const struct asked *a = arg;

	__atomic_add_fetch(a->calls, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < INTS; i++)
		answer[i] = a->q.device * 1000003 + a->q.number[0] * 7 + a->q.number[3] * 31 + i;
	return a->ret;
}

static int look(const void *kernel, int device, int number, int *calls, int ret, int32_t answer[INTS])
{
	struct asked a = { .q = { .kernel = kernel, .device = device, .number = { number, 0, 0, -number } },
			   .calls = calls, .ret = ret };

	return cairn_device_ask(&a.q, answer, INTS, ask, &a);
}

static int right(const int32_t answer[INTS], int device, int number)
{
	int ok = 1;

	for (int i = 0; i < INTS; i++)
		ok &= answer[i] == device * 1000003 - number * 24 + i;
	return ok;
}

static void remembers(struct cairn_test *t)
{
	static const char kernels[2];
	int calls = 0;
	int32_t answer[INTS];

	for (int round = 0; round < 2; round++) {
		for (int device = 0; device < DEVICES; device++) {
			for (int number = 0; number < QUESTIONS; number++) {
				EXPECT(t, !look(&kernels[number & 1], device, number, &calls, 0, answer));
				EXPECT(t, right(answer, device, number));
			}
		}
		EXPECT(t, calls == DEVICES * QUESTIONS);
	}
}

static void forgets_errors(struct cairn_test *t)
{
	static const char kernel;
	int calls = 0;
	int32_t answer[INTS];

	EXPECT(t, look(&kernel, 0, 1, &calls, -5, answer) == -5);
	EXPECT(t, look(&kernel, 0, 1, &calls, 0, answer) == 0);
	EXPECT(t, look(&kernel, 0, 1, &calls, -5, answer) == 0 && right(answer, 0, 1));
	EXPECT(t, calls == 2);
}

static const char shared;
static int shared_calls, shared_wrong;

/* Each thread starts at a different place in the same list of questions. */
static void *run(void *arg)
{
	int first = *(int *)arg, wrong = 0;
	int32_t answer[INTS];

	for (int i = 0; i < DEVICES * QUESTIONS; i++) {
		int at = (first + i) % (DEVICES * QUESTIONS);
		int ret = look(&shared, at % DEVICES, at / DEVICES, &shared_calls, 0, answer);

		wrong += ret || !right(answer, at % DEVICES, at / DEVICES);
	}
	__atomic_add_fetch(&shared_wrong, wrong, __ATOMIC_RELAXED);
	return NULL;
}

static void threads(struct cairn_test *t)
{
	pthread_t thread[THREADS];
	int first[THREADS], started = 0, calls;

	for (; started < THREADS; started++) {
		first[started] = started * 501;
		if (pthread_create(&thread[started], NULL, run, &first[started]))
			break;
	}
	for (int i = 0; i < started; i++)
		pthread_join(thread[i], NULL);
	EXPECT(t, started == THREADS);
	EXPECT(t, !shared_wrong);
	EXPECT(t, shared_calls >= DEVICES * QUESTIONS && shared_calls <= THREADS * DEVICES * QUESTIONS);
	calls = shared_calls;
	run(&first[0]);		/* everything is known now */
	EXPECT(t, shared_calls == calls && !shared_wrong);
}

static const struct cairn_unit units[] = {
	{ "remembers", remembers },
	{ "forgets_errors", forgets_errors },
	{ "threads", threads },
};

const struct cairn_family cairn_device_cache_family = {
	.stage = "primitives", .name = "device_cache",
	.units = units, .num_units = ARRAY_SIZE(units),
};
