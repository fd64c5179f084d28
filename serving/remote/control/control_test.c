// SPDX-License-Identifier: Apache-2.0
/* control_test - control messages that are as control.h says are accepted, and no others */
#include "conformance/harness.h"
#include "serving/remote/control/channel_test.h"

union message {
	struct cairn_control_join join;
	struct cairn_control_assign assign;
	struct cairn_control_epoch epoch;
	struct cairn_control_beat beat;
	struct cairn_control_plan plan;
	struct cairn_control_blob blob;
	struct cairn_control_prompt prompt;
	struct cairn_control_lease lease;
	struct cairn_control_drop drop;
	char bytes[512];
};

static const struct cairn_control_join join = {
	.version = CAIRN_CONTROL_VERSION, .role = CAIRN_MEMBER_ATTENTION, .digest = 7, .transports = 5,
	.config = 8, .weights = 9, .rank = -1, .pid = 12, .table = "cpu",
};
static const struct cairn_control_assign assign = {
	.epoch = 1, .rank = 3, .config = 9, .first_head = 6, .num_heads = 2, .num_layers = 32,
	.num_kv_heads = 8, .head_dim = 128, .num_pages = 1000, .page_size = 16, .dtype = 2, .transport = 1,
	.group = 4, .max_rows = 64, .max_batch = 8, .max_context = 512, .window = 100, .query_scalar = 128,
	.attention_factor = 1, .stripes = 1,
};
/* one with scales of an 8-bit cache */
static const struct cairn_control_assign scaled = {
	.epoch = 1, .num_heads = 1, .num_layers = 2, .num_kv_heads = 1, .head_dim = 64, .num_pages = 10,
	.page_size = 16, .dtype = 2, .kv_fp8 = 1, .group = 1, .max_rows = 8, .max_batch = 8,
	.max_context = 64, .previous = 1, .query_scalar = 64, .attention_factor = 1.25, .softcap = 50,
	.num_bytes = 16, .stripes = 1,
};
/* one of latent attention, in stripes */
static const struct cairn_control_assign latent = {
	.epoch = 1, .num_heads = 1, .num_layers = 2, .num_kv_heads = 1, .head_dim = 192, .num_pages = 10,
	.page_size = 16, .dtype = 2, .group = 128, .max_rows = 8, .max_batch = 8, .max_context = 64,
	.previous = 1, .query_scalar = 192, .attention_factor = 1, .stripe = 62, .stripes = 63,
	.kv_lora_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128,
};
static const struct cairn_control_epoch epoch = { .epoch = 2 };
static const struct cairn_control_beat beat = { .passes = 3 };
static const struct cairn_control_plan plan = { .pass = 1, .lane = 2, .num_bytes = 5 };
static const struct cairn_control_blob blob = { .from = 1, .to = 255, .num_bytes = 3, .epoch = 1 };

static const struct cairn_control_prompt prompt = {
	.job = 4, .first = 1, .num_tokens = 2, .lease_ms = 30000,
};
static const struct cairn_control_lease lease = { .job = 4, .lease_ms = 1 };
static const struct cairn_control_drop drop = { .job = 4 };

static const struct good {
	uint32_t kind;
	const void *head;
	size_t head_bytes, rest;
	int to_lead, to_member;
} good[] = {
	{ CAIRN_CONTROL_JOIN, &join, sizeof(join), 0, 1, 0 },
	{ CAIRN_CONTROL_READY, &epoch, sizeof(epoch), 0, 1, 0 },
	{ CAIRN_CONTROL_BEAT, &beat, sizeof(beat), 0, 1, 0 },
	{ CAIRN_CONTROL_FAILED, "", 0, 9, 1, 0 }, { CAIRN_CONTROL_FAILED, "", 0, 0, 1, 0 },
	{ CAIRN_CONTROL_ASSIGN, &assign, sizeof(assign), 0, 0, 1 },
	{ CAIRN_CONTROL_ASSIGN, &scaled, sizeof(scaled), 16, 0, 1 },
	{ CAIRN_CONTROL_ASSIGN, &latent, sizeof(latent), 0, 0, 1 },
	{ CAIRN_CONTROL_REFUSE, "", 0, 200, 0, 1 },
	{ CAIRN_CONTROL_PLAN, &plan, sizeof(plan), 5, 0, 1 },
	{ CAIRN_CONTROL_STATUS, &epoch, sizeof(epoch), 0, 0, 1 },
	{ CAIRN_CONTROL_BLOB, &blob, sizeof(blob), 3, 1, 1 },
	{ CAIRN_CONTROL_PROMPT, &prompt, sizeof(prompt), 8, 0, 1 },
	{ CAIRN_CONTROL_LEASE, &lease, sizeof(lease), 0, 0, 1 },
	{ CAIRN_CONTROL_DROP, &drop, sizeof(drop), 0, 0, 1 },
};

static struct cairn_channel_message make(const struct good *g, union message *room)
{
	memset(room, 'x', sizeof(*room));
	memcpy(room, g->head, g->head_bytes);
	return (struct cairn_channel_message){ .kind = g->kind, .data = room,
					       .num_bytes = g->head_bytes + g->rest };
}

static void accepted(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		union message room;
		struct cairn_channel_message m = make(&good[i], &room);

		for (int to_lead = 0; to_lead < 2; to_lead++) {
			int want = to_lead ? good[i].to_lead : good[i].to_member;

			if (!EXPECT(t, cairn_control_check(&m, to_lead) == (want ? 0 : -EINVAL)))
				cairn_note(t, "%s: %s", cairn_control_kind_name(m.kind), cairn_last_error());
		}
		if (good[i].rest)
			continue;
		m.num_bytes++;		/* a message without text has one size */
		EXPECT(t, m.kind == CAIRN_CONTROL_FAILED ||
		       cairn_control_check(&m, good[i].to_lead) == -EINVAL);
		m.num_bytes -= 2;
		EXPECT(t, cairn_control_check(&m, good[i].to_lead) == -EINVAL);
	}
}

/* Sets a member of a good message to a value that it must not have. */
#define BAD(Kind, type, member, to, says) \
	{ CAIRN_CONTROL_##Kind, offsetof(struct cairn_control_##type, member), \
	  sizeof(((struct cairn_control_##type *)0)->member), (uint64_t)(int64_t)(to), says }

static const struct {
	uint32_t kind;
	size_t at, bytes;
	uint64_t value;
	const char *says;
} bad[] = {
	BAD(JOIN, join, version, 2, "join: version is 2"), BAD(JOIN, join, role, 3, "join: role is 3"),
	BAD(JOIN, join, transports, 0, "join: transports is 0"), BAD(JOIN, join, rank, -2, "rank is -2"),
	BAD(JOIN, join, rank, 256, "join: rank is 256"), BAD(READY, epoch, epoch, 0, "ready: epoch is 0"),
	BAD(READY, epoch, error, 1, "ready: error is 1"), BAD(STATUS, epoch, epoch, 0, "status: epoch is 0"),
	BAD(ASSIGN, assign, epoch, 0, "epoch is 0"), BAD(ASSIGN, assign, rank, 256, "rank is 256"),
	BAD(ASSIGN, assign, first_head, 7, "first_head is 7"),
	BAD(ASSIGN, assign, first_head, -1, "first_head is -1"),
	BAD(ASSIGN, assign, num_heads, 0, "num_heads is 0"),
	BAD(ASSIGN, assign, num_heads, 9, "num_heads is 9"),
	BAD(ASSIGN, assign, num_layers, 0, "num_layers is 0"),
	BAD(ASSIGN, assign, num_kv_heads, 0, "num_kv_heads is 0"),
	BAD(ASSIGN, assign, head_dim, 7, "head_dim"), BAD(ASSIGN, assign, num_pages, -5, "num_pages is -5"),
	BAD(ASSIGN, assign, page_size, 0, "page_size"), BAD(ASSIGN, assign, dtype, -1, "dtype is -1"),
	BAD(ASSIGN, assign, kv_fp8, 2, "kv_fp8 is 2"), BAD(ASSIGN, assign, transport, 32, "transport is 32"),
	BAD(PLAN, plan, pass, 0, "plan: pass is 0"), BAD(PLAN, plan, pass, -1, "plan: pass is -1"),
	BAD(PLAN, plan, lane, 3, "plan: lane is 3"), BAD(PLAN, plan, num_bytes, 4, "plan: num_bytes is 4"),
	BAD(PLAN, plan, num_bytes, 6, "plan: num_bytes is 6"), BAD(BLOB, blob, from, -1, "blob: from is -1"),
	BAD(BLOB, blob, to, 256, "blob: to is 256"), BAD(BLOB, blob, num_bytes, 2, "blob: num_bytes is 2"),
	BAD(BLOB, blob, epoch, 0, "blob: epoch is 0"), BAD(JOIN, join, pid, -1, "join: pid is -1"),
	BAD(JOIN, join, reserved, 1, "join: reserved is 1"),
	BAD(JOIN, join, table, 0, "the table's first byte"),
	BAD(JOIN, join, table, 7, "the table's character"), BAD(ASSIGN, assign, group, 0, "group is 0"),
	BAD(ASSIGN, assign, group, 1025, "group is 1025"), BAD(ASSIGN, assign, max_rows, 0, "max_rows is 0"),
	BAD(ASSIGN, assign, max_batch, 65, "max_batch is 65"),
	BAD(ASSIGN, assign, max_context, 0, "max_context is 0"),
	BAD(ASSIGN, assign, stripes, 0, "stripes is 0"), BAD(ASSIGN, assign, stripes, 64, "stripes is 64"),
	BAD(ASSIGN, assign, stripe, 1, "stripe is 1"), BAD(ASSIGN, assign, stripes, 2, "previous is 0"),
	BAD(ASSIGN, assign, kv_lora_rank, 512, "num_heads is 2"),
	BAD(ASSIGN, assign, v_dim, 128, "v_dim is 128"), BAD(ASSIGN, assign, rope_dim, 1, "rope_dim is 1"),
	BAD(ASSIGN, assign, previous, 2, "previous is 2"), BAD(ASSIGN, assign, window, -1, "window is -1"),
	BAD(ASSIGN, assign, query_scalar, 0, "query_scalar is 0"),
	BAD(ASSIGN, assign, attention_factor, INT64_MAX, "attention_factor is nan"),
	BAD(ASSIGN, assign, softcap, -1, "softcap is -nan"),
	BAD(ASSIGN, assign, lanes, 4, "assign: lanes is 4"),
	BAD(ASSIGN, assign, num_bytes, 1, "assign: num_bytes is 1"),
	BAD(PROMPT, prompt, job, 0, "prompt: job is 0"), BAD(PROMPT, prompt, first, -1, "first is -1"),
	BAD(PROMPT, prompt, first, 2, "prompt: first is 2"),
	BAD(PROMPT, prompt, num_tokens, 1, "prompt: num_tokens is 1"),
	BAD(PROMPT, prompt, num_tokens, 3, "prompt: num_tokens is 3"),
	BAD(PROMPT, prompt, lease_ms, 0, "prompt: lease_ms is 0"),
	BAD(PROMPT, prompt, reserved, 1, "prompt: reserved is 1"),
	BAD(LEASE, lease, job, 0, "lease: job is 0"),
	BAD(LEASE, lease, lease_ms, 3600001, "lease: lease_ms is 3600001"),
	BAD(LEASE, lease, reserved, 1, "lease: reserved is 1"), BAD(DROP, drop, job, -1, "drop: job is -1"),
};

static void refused(struct cairn_test *t)
{
	static const char *const texts[] = { "a\nb", "\x1b[2J", "\xc3", "\xc2\x85", "\x7f" };
	struct cairn_channel_message m = { .kind = 99, .data = "" };

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		const struct good *g = good;
		union message room;

		while (g->kind != bad[i].kind)
			g++;
		m = make(g, &room);
		memcpy((char *)&room + bad[i].at, &bad[i].value, bad[i].bytes);
		EXPECT(t, cairn_control_check(&m, g->to_lead) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), bad[i].says);
	}
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		m = (struct cairn_channel_message){ CAIRN_CONTROL_FAILED, texts[i], strlen(texts[i]) };
		EXPECT(t, cairn_control_check(&m, 1) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "failed: the text's character");
	}
	for (uint32_t kind = 0; kind < 300; kind += kind ? CAIRN_CONTROL_NUM_KINDS - 1 : 1) {
		m.kind = kind < 2 ? 0 : kind;
		EXPECT(t, cairn_control_check(&m, 1) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "unknown kind");
	}
}

/* A message sent in two parts arrives as one. */
static void sent(struct cairn_test *t)
{
	struct cairn_channel_message m;
	struct cairn_control_channel *c;
	struct member x;
	int fd[2];

	if (!have_sodium(t) || !EXPECT(t, connect_two(fd, 1) == 0))
		return;
	start_member(&x, fd[1], NULL, PATIENCE);
	if (EXPECT(t, cairn_channel_open(&c, fd[0], CAIRN_CHANNEL_LEAD, NULL, PATIENCE) == 0)) {
		EXPECT(t, cairn_control_send(c, CAIRN_CONTROL_PLAN, &plan, sizeof(plan), "abcde", 5,
					     PATIENCE) == 0);
		EXPECT(t, cairn_channel_receive(c, &m, PATIENCE) == 0);
		m.kind--;		/* as the member changes it */
		EXPECT(t, cairn_control_check(&m, 0) == 0);
		EXPECT(t, !memcmp((const char *)m.data + sizeof(plan), "abcde", 5));
		cairn_channel_close(c);
	}
	join_member(&x);
}

static const struct cairn_unit units[] = {
	{ "accepted", accepted }, { "refused", refused }, { "sent", sent },
};

const struct cairn_family cairn_control_family = {
	.stage = "serving", .name = "control", .units = units, .num_units = ARRAY_SIZE(units),
};
