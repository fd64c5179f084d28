// SPDX-License-Identifier: Apache-2.0
/*
 * kv_mutants_test - checks that model checking detects every fault
 *
 * Each fault of kv_fault.h is switched on in turn. Lists of operations are drawn until one fails, and that
 * list is shrunk. A fault that is not detected, or whose reproducer stays long, fails the test.
 */
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/kv/kv_mutants.h"

#include "serving/kv/kv_fault.h"
#include "serving/kv/kv_model.h"

enum { LIST = 400, MOST_LISTS = 4000, MOST_OPS = 15, MANY_OPS = 60 };

static void notice(struct cairn_test *t, int fault, const struct kv_model *m, int most_ops)
{
	static struct kv_op ops[LIST], least[LIST];
	static char text[4096];
	char why[512];
	uint64_t seed = cairn_rand(t);
	int lists = 0, n = LIST, found = 0;

	cairn_kv_fault = fault;
	/* Keep the shortest of a few failing lists, because some lists shrink badly. */
	for (int tries = 0; lists < MOST_LISTS && tries < 6 && n > most_ops / 2; lists++) {
		int at, len;

		kv_model_draw(m, ops, LIST, &seed);
		at = m->run(ops, LIST, why, sizeof(why));
		if (at == LIST)
			continue;
		tries++;
		len = kv_model_shrink(m, ops, at + 1);
		if (!found || len < n) {
			n = len;
			memcpy(least, ops, (size_t)len * sizeof(*ops));
		}
		found = 1;
	}
	if (EXPECT(t, found && n <= most_ops)) {
		cairn_kv_fault = fault;
		kv_model_print(m, least, n, text, sizeof(text));
		cairn_note(t, "detected in list %d, shrunk to %d operations:\n%s", lists, n, text);
		cairn_kv_fault = FAULT_NONE;	/* without the fault the list must pass */
		EXPECT(t, m->run(least, n, why, sizeof(why)) == n);
	} else {
		cairn_note(t, "%d lists, %d operations", lists, n);
	}
	cairn_kv_fault = FAULT_NONE;
}

#define MUTANT(name, fault, model) \
	static void name(struct cairn_test *t) { notice(t, FAULT_##fault, &mutant_model_##model, MOST_OPS); }

MUTANT(pool_reference_leaked, REF_LEAK, pool)
MUTANT(pool_fork_uncounted, FORK_UNCOUNTED, pool)
MUTANT(pool_copy_to_the_wrong_page, COPY_TARGET, pool)
MUTANT(pool_copy_missed, COPY_MISSED, pool)
MUTANT(pool_growth_half_done, GROWTH_HALF_DONE, pool)
MUTANT(tree_split_off_by_one, SPLIT_OFF_BY_ONE, tree)
MUTANT(tree_evicts_pinned, EVICT_PINNED, tree)
MUTANT(tree_evicts_inner, EVICT_INNER, tree)
MUTANT(tree_lru_not_touched, LRU_NOT_TOUCHED, tree)
MUTANT(tree_salt_ignored, SALT_IGNORED, tree)
MUTANT(tree_events_of_splits, EVENTS_SPLIT, tree)
MUTANT(tree_events_of_tenants, EVENTS_SALTED, tree)
MUTANT(tree_events_of_removals_lost, EVENTS_REMOVAL_LOST, tree)
MUTANT(tree_first_token_only, FIRST_TOKEN_ONLY, tree)
MUTANT(scheduler_full_hit, FULL_HIT, scheduler)
MUTANT(scheduler_double_admission, DOUBLE_ADMISSION, scheduler)
MUTANT(scheduler_starvation, STARVATION, scheduler)
MUTANT(scheduler_late_token_kept, LATE_TOKEN_KEPT, scheduler)
MUTANT(scheduler_swap_page_lost, SWAP_PAGE_LOST, scheduler)
MUTANT(scheduler_offload_early, OFFLOAD_EARLY, scheduler)
MUTANT(scheduler_spill_late, SPILL_LATE, scheduler)
MUTANT(scheduler_over_commit, OVER_COMMIT, scheduler)
MUTANT(scheduler_cancel_leak, CANCEL_LEAK, scheduler)
MUTANT(scheduler_victim_planned, VICTIM_PLANNED, scheduler)
MUTANT(scheduler_queue_tokens, QUEUE_TOKENS, scheduler)
MUTANT(scheduler_deadline_late, DEADLINE_LATE, scheduler)
MUTANT(scheduler_repeat_mixed, REPEAT_MIXED, scheduler)
MUTANT(scheduler_repeat_halved, REPEAT_HALVED, scheduler)
MUTANT(scheduler_repeat_replay, REPEAT_REPLAY, scheduler)
MUTANT(scheduler_repeat_mid_chunk, REPEAT_MID_CHUNK, scheduler)
MUTANT(scheduler_repeat_answer_kept, REPEAT_ANSWER_KEPT, scheduler)
MUTANT(scheduler_repeat_last_row, REPEAT_LAST_ROW, scheduler)
MUTANT(scheduler_draft_kv_kept, DRAFT_KV_KEPT, scheduler)
MUTANT(scheduler_draft_row_too_many, DRAFT_ROW_TOO_MANY, scheduler)
MUTANT(scheduler_draft_bonus_lost, DRAFT_BONUS_LOST, scheduler)
MUTANT(scheduler_draft_all_accepted, DRAFT_ALL_ACCEPTED, scheduler)
MUTANT(scheduler_draft_stop_ignored, DRAFT_STOP_IGNORED, scheduler)
MUTANT(scheduler_draft_too_long, DRAFT_TOO_LONG, scheduler)
MUTANT(scheduler_draft_beyond, DRAFT_BEYOND, scheduler)
MUTANT(scheduler_draft_swapped, DRAFT_SWAPPED, scheduler)
MUTANT(scheduler_draft_offloaded, DRAFT_OFFLOADED, scheduler)
MUTANT(scheduler_draft_end_kept, DRAFT_END_KEPT, scheduler)
MUTANT(scheduler_draft_first_dropped, DRAFT_FIRST_DROPPED, scheduler)
MUTANT(scheduler_tree_chain, TREE_CHAIN, scheduler)
MUTANT(scheduler_tree_orphan, TREE_ORPHAN, scheduler)
MUTANT(scheduler_reset_tree_kept, RESET_TREE_KEPT, scheduler)
MUTANT(scheduler_reset_draw_kept, RESET_DRAW_KEPT, scheduler)
MUTANT(scheduler_reset_number_kept, RESET_NUMBER_KEPT, scheduler)
MUTANT(scheduler_reset_one_plan, RESET_ONE_PLAN, scheduler)
MUTANT(scheduler_lane_ignored, LANE_IGNORED, scheduler)
MUTANT(scheduler_lane_prompt_ignored, LANE_PROMPT_IGNORED, scheduler)
MUTANT(scheduler_lane_resumed_anywhere, LANE_RESUMED_ANYWHERE, scheduler)
MUTANT(scheduler_lane_left_unasked, LANE_LEFT_UNASKED, scheduler)
MUTANT(scheduler_lane_busy, LANE_BUSY, scheduler)
MUTANT(scheduler_import_gap, IMPORT_GAP, scheduler)
MUTANT(scheduler_import_shifted, IMPORT_SHIFTED, scheduler)
MUTANT(scheduler_import_unawaited, IMPORT_UNAWAITED, scheduler)
MUTANT(scheduler_import_overtaken, IMPORT_OVERTAKEN, scheduler)
MUTANT(scheduler_tail_leak, TAIL_LEAK, scheduler)
MUTANT(scheduler_tail_full, TAIL_FULL, scheduler)
MUTANT(scheduler_revoked_untold, REVOKED_UNTOLD, scheduler)
/* faults in pool and tree that the scheduler's model detects */
MUTANT(scheduler_copy_missed, COPY_MISSED, scheduler)
MUTANT(scheduler_salt_ignored, SALT_IGNORED, scheduler)
MUTANT(scheduler_first_token_only, FIRST_TOKEN_ONLY, scheduler)

/* A request must wait while others take all that the tree has of its prompt: no short list does that. */
static void scheduler_tail_gap(struct cairn_test *t)
{
	notice(t, FAULT_TAIL_GAP, &mutant_model_scheduler, MANY_OPS);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(pool_reference_leaked), UNIT(pool_fork_uncounted), UNIT(pool_copy_to_the_wrong_page),
	UNIT(pool_copy_missed), UNIT(pool_growth_half_done), UNIT(tree_split_off_by_one),
	UNIT(tree_evicts_pinned), UNIT(tree_evicts_inner), UNIT(tree_lru_not_touched),
	UNIT(tree_salt_ignored), UNIT(tree_events_of_splits), UNIT(tree_events_of_tenants),
	UNIT(tree_events_of_removals_lost), UNIT(tree_first_token_only), UNIT(scheduler_full_hit),
	UNIT(scheduler_double_admission), UNIT(scheduler_starvation), UNIT(scheduler_late_token_kept),
	UNIT(scheduler_swap_page_lost), UNIT(scheduler_over_commit), UNIT(scheduler_cancel_leak),
	UNIT(scheduler_victim_planned), UNIT(scheduler_queue_tokens), UNIT(scheduler_deadline_late),
	UNIT(scheduler_offload_early), UNIT(scheduler_spill_late), UNIT(scheduler_copy_missed),
	UNIT(scheduler_salt_ignored), UNIT(scheduler_first_token_only), UNIT(scheduler_repeat_mixed),
	UNIT(scheduler_repeat_halved), UNIT(scheduler_repeat_replay), UNIT(scheduler_repeat_mid_chunk),
	UNIT(scheduler_repeat_answer_kept), UNIT(scheduler_repeat_last_row),
	UNIT(scheduler_draft_kv_kept), UNIT(scheduler_draft_row_too_many),
	UNIT(scheduler_draft_bonus_lost), UNIT(scheduler_draft_all_accepted),
	UNIT(scheduler_draft_stop_ignored), UNIT(scheduler_draft_too_long),
	UNIT(scheduler_draft_beyond), UNIT(scheduler_draft_swapped), UNIT(scheduler_draft_offloaded),
	UNIT(scheduler_draft_end_kept), UNIT(scheduler_draft_first_dropped),
	UNIT(scheduler_tree_chain), UNIT(scheduler_tree_orphan),
	UNIT(scheduler_reset_tree_kept), UNIT(scheduler_reset_draw_kept), UNIT(scheduler_reset_number_kept),
	UNIT(scheduler_reset_one_plan), UNIT(scheduler_lane_ignored), UNIT(scheduler_lane_prompt_ignored),
	UNIT(scheduler_lane_resumed_anywhere), UNIT(scheduler_lane_left_unasked),
	UNIT(scheduler_lane_busy),
	UNIT(scheduler_import_gap), UNIT(scheduler_import_shifted), UNIT(scheduler_import_unawaited),
	UNIT(scheduler_import_overtaken), UNIT(scheduler_tail_gap), UNIT(scheduler_tail_leak),
	UNIT(scheduler_tail_full), UNIT(scheduler_revoked_untold),
};

const struct cairn_family cairn_kv_mutants_family = {
	.stage = "serving",
	.name = "kv_mutants",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
