// SPDX-License-Identifier: Apache-2.0
/*
 * meet - the processes of a node's devices wait for each other, and exchange messages
 *
 * A member posts the number of the meeting after its message. Two messages in turn suffice: a member that
 * comes to meeting k has read the messages of meeting k - 1, so when all have come to meeting k, nobody needs
 * those of k - 1.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance/validate/links.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

static size_t bytes_of(int32_t num)
{
	size_t n = (size_t)num;

	return sizeof(struct validate_node) + (n + 2 * n * n) * sizeof(struct validate_seat);
}

struct validate_node *validate_node_open(int32_t num)
{
	struct validate_node *node = mmap(NULL, bytes_of(num), PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (node == MAP_FAILED)
		return NULL;
	node->num = num;
	return node;
}

void validate_node_close(struct validate_node *node)
{
	munmap(node, bytes_of(node->num));
}

void validate_group_all(struct validate_node *node, int32_t device, struct validate_group *g)
{
	*g = (struct validate_group){ .node = node, .num = node->num, .me = device };
	for (int32_t i = 0; i < node->num; i++)
		g->members[i] = i;
}

void validate_group_pair(struct validate_node *node, int32_t device, int32_t peer, struct validate_group *g)
{
	int32_t low = device < peer ? device : peer, high = device ^ peer ^ low;

	*g = (struct validate_group){ .node = node, .num = 2, .me = device == high, .members = { low, high },
				      .first_seat = node->num + 2 * (low * node->num + high) };
}

static struct validate_seat *seat_of(const struct validate_group *g, int32_t i)
{
	/* a group of all devices has a seat for each device, which stays when others drop out of it */
	return &g->node->seats[g->first_seat ? g->first_seat + i : g->members[i]];
}

/* Waits for member i. Meetings follow each other within microseconds, so that it spins at first. */
static int await(const struct validate_group *g, int32_t i, uint32_t number)
{
	struct validate_seat *s = seat_of(g, i);
	double end = 0;

	for (uint32_t turn = 0;; turn++) {
		/* in this order: what a member has posted counts, also if it has left since */
		int gone = atomic_load(&g->node->gone[g->members[i]]);

		if ((int32_t)(atomic_load_explicit(&s->posted, memory_order_acquire) - number) >= 0)
			return 0;
		if (gone)
			return -ECANCELED;
		if (turn < 100) {
			sched_yield();
			continue;
		}
		end = end > 0 ? end : cairn_now() + g->node->timeout_s;
		if (cairn_now() > end)
			return -ETIMEDOUT;
		usleep(50);
	}
}

int validate_meet(const struct validate_group *g, const void *mine, void *all, size_t bytes, int32_t *absent)
{
	struct validate_seat *own = seat_of(g, g->me);
	uint32_t number = atomic_load(&own->posted) + 1;

	memcpy(own->message[number % 2], mine, bytes);
	atomic_store_explicit(&own->posted, number, memory_order_release);
	for (int32_t i = 0; i < g->num; i++) {
		int ret = await(g, i, number);

		if (ret && !(absent && ret == -ECANCELED))
			return cairn_error(-ret, "device %d %s", g->members[i], ret == -ECANCELED ?
					   "has left the test" : "did not come in time");
		if (absent)
			absent[i] = ret != 0;
		if (ret)
			memset((uint8_t *)all + (size_t)i * bytes, 0, bytes);
		else
			memcpy((uint8_t *)all + (size_t)i * bytes, seat_of(g, i)->message[number % 2], bytes);
	}
	return 0;
}
