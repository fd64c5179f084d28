// SPDX-License-Identifier: Apache-2.0
/* lead_roles_test - workers of two roles at one lead */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/base/digest.h"
#include "serving/engine/engine_test.h"
#include "serving/remote/member/model_digest.h"
#include "serving/remote/remote_rig_test.h"

enum { CONFIG = 11, WEIGHTS = 22 };

static struct rig rig;

static int open_lead(struct cairn_test *t, int32_t attention, int32_t prefill)
{
	const struct cairn_lead_options o = {
		.attention = attention, .prefill = prefill, .table = "cpu", .listen = "127.0.0.1:0",
		.beat_ms = 60000, .join_ms = 200, .config = CONFIG, .weights = WEIGHTS,
	};
	int ret = cairn_lead_create(&rig.lead, &o);

	if (ret == -EOPNOTSUPP)
		cairn_skip(t, "%s", cairn_last_error());
	else if (!EXPECT(t, ret == 0))
		cairn_note(t, "%s", cairn_last_error());
	if (!ret)
		snprintf(rig.join, sizeof(rig.join), "127.0.0.1:%d", cairn_lead_port(rig.lead));
	return ret;
}

static struct cairn_control_join join_as(enum cairn_member_role role)
{
	struct cairn_control_join j = rig_join();

	j.role = role;
	if (role == CAIRN_MEMBER_PREFILL) {
		j.config = CONFIG;
		j.weights = WEIGHTS;
	}
	return j;
}

/* Joins, and waits until the lead counts `members`. */
static void join(struct cairn_test *t, struct rig_guest *g, enum cairn_member_role role, int members)
{
	const struct cairn_control_join j = join_as(role);
	struct cairn_lead_stats stats = { 0 };

	EXPECT(t, rig_knock(&rig, g) == 0 &&
	       cairn_channel_send(g->c, CAIRN_CONTROL_JOIN, &j, sizeof(j), 5000) == 0);
	for (int i = 0; i < 5000 && stats.members < members; i++) {
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
		cairn_lead_stats(rig.lead, &stats);
	}
	EXPECT(t, stats.members == members);
}

static void refuse(struct cairn_test *t, struct cairn_control_join j, const char *says)
{
	struct cairn_channel_message m;
	struct rig_guest g;

	if (!EXPECT(t, rig_knock(&rig, &g) == 0))
		return;
	EXPECT(t, rig_say(&g, CAIRN_CONTROL_JOIN, &j, sizeof(j), CAIRN_CONTROL_ASSIGN, &m, 10000) == -EPERM);
	EXPECT_CONTAINS(t, g.refused, says);
	cairn_channel_close(g.c);
}

/* A prefill worker must have the lead's model and weights; an attention worker need not have any. */
static void digests(struct cairn_test *t)
{
	struct cairn_control_join j = join_as(CAIRN_MEMBER_PREFILL);
	struct rig_guest g;

	if (open_lead(t, 1, 1))
		return;
	j.weights++;
	refuse(t, j, "other weights: theirs have the digest 0000000000000017, the lead's 0000000000000016");
	j.weights = 0;
	refuse(t, j, "other weights");
	j = join_as(CAIRN_MEMBER_PREFILL);
	j.config++;
	refuse(t, j, "another model: its configuration has the digest 000000000000000c");
	j = join_as(CAIRN_MEMBER_ATTENTION);
	j.config = CONFIG + 1;
	refuse(t, j, "another model");
	refuse(t, join_as(CAIRN_MEMBER_MODEL), "role 0 is not wanted here");
	join(t, &g, CAIRN_MEMBER_ATTENTION, 1);
	cairn_channel_close(g.c);
	cairn_lead_destroy(rig.lead);
}

/* A spare takes a rank of its own role; the loss of a prefill worker is no loss for the attention workers. */
static void apart(struct cairn_test *t)
{
	struct rig_guest attention, prefill[2];
	uint32_t epoch, first, second;

	if (open_lead(t, 1, 2))
		return;
	join(t, &prefill[0], CAIRN_MEMBER_PREFILL, 1);
	EXPECT(t, cairn_lead_gather(rig.lead, &epoch) == -ETIMEDOUT);
	EXPECT_CONTAINS(t, cairn_last_error(), "attention_workers: 0 of 1 have joined in time");
	EXPECT(t, cairn_lead_take(rig.lead, 2, 5000, &first) == 0 && first > epoch);
	EXPECT(t, cairn_lead_take(rig.lead, 3, 50, &second) == -ETIMEDOUT);
	join(t, &attention, CAIRN_MEMBER_ATTENTION, 2);
	EXPECT(t, cairn_lead_take(rig.lead, 3, 50, &second) == -ETIMEDOUT);
	EXPECT(t, cairn_lead_gather(rig.lead, &epoch) == 0 && epoch > first);
	join(t, &prefill[1], CAIRN_MEMBER_PREFILL, 3);
	EXPECT(t, cairn_lead_take(rig.lead, 3, 5000, &second) == 0 && second > epoch);
	EXPECT(t, cairn_lead_has(rig.lead, 1) && cairn_lead_has(rig.lead, 2) && cairn_lead_has(rig.lead, 3));

	cairn_channel_close(prefill[0].c);
	for (int i = 0; i < 5000 && cairn_lead_has(rig.lead, 2); i++)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	EXPECT(t, !cairn_lead_has(rig.lead, 2) && cairn_lead_has(rig.lead, 3));
	EXPECT(t, !cairn_lead_lost(rig.lead));
	EXPECT(t, cairn_lead_send(rig.lead, 2, CAIRN_CONTROL_DROP, &(struct cairn_control_drop){ 1 },
				  sizeof(struct cairn_control_drop), NULL, 0) == -ECONNRESET);
	EXPECT_CONTAINS(t, cairn_last_error(), "prefill worker 1: channel: ");

	cairn_channel_close(attention.c);
	for (int i = 0; i < 5000 && !cairn_lead_lost(rig.lead); i++)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	EXPECT(t, cairn_lead_lost(rig.lead) && cairn_lead_has(rig.lead, 3));
	cairn_channel_close(prefill[1].c);
	cairn_lead_destroy(rig.lead);
}

/* Two copies of a model have one digest; a bit of a weight, or another form of the cache, has another. */
static void digest(struct cairn_test *t)
{
	uint64_t want, got;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	char *weight;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		return;
	EXPECT(t, cairn_model_digest(m, &want) == 0 && want);
	weight = cairn_model_weight(m, 1, CAIRN_W_DOWN);
	weight[m->elements[CAIRN_W_DOWN]] ^= 1;
	EXPECT(t, cairn_model_digest(m, &got) == 0 && got != want);
	weight[m->elements[CAIRN_W_DOWN]] ^= 1;
	EXPECT(t, cairn_model_digest(m, &got) == 0 && got == want);
	m->inv_freq[3] *= 2;
	EXPECT(t, cairn_model_digest(m, &got) == 0 && got != want);
	close_model(m, &g);
	if (!open_model(t, "ref", "llama3_tiny", &impl, &g, &m)) {
		EXPECT(t, cairn_model_digest(m, &got) == 0 && got == want);
		close_model(m, &g);
	}
	if (!open_model_as(t, "cpu", "llama3_tiny", CAIRN_KV_FP8, &impl, &g, &m)) {
		EXPECT(t, cairn_model_digest(m, &got) == 0 && got != want);
		close_model(m, &g);
	}
	if (!open_model(t, "cpu", "qwen3_moe_tiny", &impl, &g, &m)) {
		EXPECT(t, cairn_model_digest(m, &want) == 0 && cairn_model_digest(m, &got) == 0);
		EXPECT(t, got == want);
		close_model(m, &g);
	}
}

/* Bytes of any number, and each of their bits, count. */
static void bytes(struct cairn_test *t)
{
	uint64_t seen[200];
	uint8_t zeros[200] = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(seen); i++) {
		seen[i] = cairn_digest(CAIRN_DIGEST_START, zeros, i);
		for (size_t k = 0; k < i; k++)
			EXPECT(t, seen[k] != seen[i]);
	}
	for (size_t bit = 0; bit < 8 * 150; bit++) {
		zeros[bit / 8] ^= (uint8_t)(1 << bit % 8);
		EXPECT(t, cairn_digest(CAIRN_DIGEST_START, zeros, 150) != seen[150]);
		zeros[bit / 8] = 0;
	}
}

static void options(struct cairn_test *t)
{
	struct cairn_lead_options o = { .table = "cpu" };

	EXPECT(t, cairn_lead_create(&rig.lead, &o) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "attention_workers: is 0, must be 1 to 237");
	o.model = 1;
	EXPECT(t, cairn_lead_create(&rig.lead, &o) == -EINVAL);
	o.attention = 1;
	o.model = 3;
	EXPECT(t, cairn_lead_create(&rig.lead, &o) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "model_workers: is 4, must be 1 to 3");
	o.attention = o.model = 0;
	o.prefill = 17;
	EXPECT(t, cairn_lead_create(&rig.lead, &o) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "prefill_workers: is 17, must be 0 to 16");
}

/* Returns the number after --device in a worker's command line; -1: it has none. */
static int device_of(int pid)
{
	char path[64], words[4096];
	size_t n, at = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
	f = fopen(path, "r");
	if (!f)
		return -1;
	n = fread(words, 1, sizeof(words) - 1, f);
	fclose(f);
	words[n] = 0;
	while (at < n && strcmp(words + at, "--device"))
		at += strlen(words + at) + 1;
	return at < n ? atoi(words + at + strlen("--device") + 1) : -1;
}

/* Starts the workers, and counts them by their devices. */
static void expect_devices(struct cairn_test *t, const struct cairn_lead_options *o, const int want[4])
{
	const int32_t ranks = o->attention + o->prefill + o->model;
	int num[4] = { 0 };
	struct cairn_lead *lead;
	uint32_t epoch;
	const int created = cairn_lead_create(&lead, o);

	if (created == -EOPNOTSUPP) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	if (!EXPECT(t, created == 0))
		return;
	for (int32_t rank = 1; rank <= ranks; rank++) {
		const int ret = o->prefill ? cairn_lead_take(lead, rank, 20000, &epoch) :
				rank == 1 ? cairn_lead_gather(lead, &epoch) : 0;
		const int device = EXPECT(t, !ret) ? device_of(cairn_lead_pid(lead, rank)) : -1;

		if (EXPECT(t, device >= 0 && device < 4))
			num[device]++;
		EXPECT(t, rank > o->attention || device == o->first_device + rank - 1);
	}
	EXPECT(t, !memcmp(num, want, sizeof(num)));
	cairn_lead_destroy(lead);
}

/* Workers that the lead starts take the GPUs behind the first one, in turn; model workers the last ones. */
static void devices(struct cairn_test *t)
{
	const struct cairn_lead_options prefill = {
		.prefill = 3, .table = "cpu", .first_device = 1, .num_devices = 4, .prefill_devices = 2,
		.beat_ms = 20000,
	};
	const struct cairn_lead_options model = {
		.attention = 1, .model = 2, .table = "cpu", .first_device = 1, .num_devices = 3,
		.beat_ms = 20000,
	};

	expect_devices(t, &prefill, (const int[]){ 0, 2, 0, 1 });
	expect_devices(t, &model, (const int[]){ 1, 1, 1, 0 });
}

static const struct cairn_unit units[] = {
	{ "digests", digests }, { "apart", apart }, { "options", options }, { "digest", digest },
	{ "bytes", bytes }, { "devices", devices },
};

const struct cairn_family cairn_lead_roles_family = {
	.stage = "serving", .name = "lead_roles", .units = units, .num_units = ARRAY_SIZE(units), .waits = 1,
};
