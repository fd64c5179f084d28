/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_mutants - compiles the KV modules and their models a second time, under other names and with faults
 * (kv_fault.h)
 *
 * Must be the first header of each kv_mutants_*.c, which then includes the modules themselves.
 */
#ifndef CAIRN_KV_MUTANTS_H
#define CAIRN_KV_MUTANTS_H

#define CAIRN_KV_MUTANTS

/* kv_alloc_test.c provides the memory and can make an allocation fail. */
#include <stdlib.h>
void *cairn_kv_malloc(size_t bytes);
void *cairn_kv_calloc(size_t num, size_t bytes);
void *cairn_kv_realloc(void *p, size_t bytes);
#define malloc	cairn_kv_malloc
#define calloc	cairn_kv_calloc
#define realloc	cairn_kv_realloc

#define cairn_kv_pool_adopt			mutant_kv_pool_adopt
#define cairn_kv_pool_close			mutant_kv_pool_close
#define cairn_kv_pool_cost			mutant_kv_pool_cost
#define cairn_kv_pool_create			mutant_kv_pool_create
#define cairn_kv_pool_destroy			mutant_kv_pool_destroy
#define cairn_kv_pool_fork			mutant_kv_pool_fork
#define cairn_kv_pool_free_pages		mutant_kv_pool_free_pages
#define cairn_kv_pool_hold			mutant_kv_pool_hold
#define cairn_kv_pool_len			mutant_kv_pool_len
#define cairn_kv_pool_open			mutant_kv_pool_open
#define cairn_kv_pool_pages			mutant_kv_pool_pages
#define cairn_kv_pool_refs			mutant_kv_pool_refs
#define cairn_kv_pool_release			mutant_kv_pool_release
#define cairn_kv_pool_resize			mutant_kv_pool_resize
#define cairn_kv_pool_stats			mutant_kv_pool_stats
#define cairn_kv_pool_verify			mutant_kv_pool_verify
#define cairn_prefix_tree_create		mutant_prefix_tree_create
#define cairn_prefix_tree_destroy		mutant_prefix_tree_destroy
#define cairn_prefix_tree_evict			mutant_prefix_tree_evict
#define cairn_prefix_tree_insert		mutant_prefix_tree_insert
#define cairn_prefix_tree_listen		mutant_prefix_tree_listen
#define cairn_prefix_tree_match			mutant_prefix_tree_match
#define cairn_prefix_tree_node			mutant_prefix_tree_node
#define cairn_prefix_tree_path			mutant_prefix_tree_path
#define cairn_prefix_tree_peek			mutant_prefix_tree_peek
#define cairn_prefix_tree_pin			mutant_prefix_tree_pin
#define cairn_prefix_tree_remove		mutant_prefix_tree_remove
#define cairn_prefix_tree_stats			mutant_prefix_tree_stats
#define cairn_prefix_tree_unpin			mutant_prefix_tree_unpin
#define cairn_prefix_tree_verify		mutant_prefix_tree_verify
#define cairn_prefix_tree_version		mutant_prefix_tree_version
#define cairn_prefix_tree_victim		mutant_prefix_tree_victim
#define cairn_scheduler_cancel			mutant_scheduler_cancel
#define cairn_scheduler_create			mutant_scheduler_create
#define cairn_scheduler_destroy			mutant_scheduler_destroy
#define cairn_scheduler_events			mutant_scheduler_events
#define cairn_scheduler_fetched			mutant_scheduler_fetched
#define cairn_scheduler_fork			mutant_scheduler_fork
#define cairn_scheduler_cached			mutant_scheduler_cached
#define cairn_scheduler_import			mutant_scheduler_import
#define cairn_scheduler_reserve			mutant_scheduler_reserve
#define cairn_scheduler_revoked			mutant_scheduler_revoked
#define cairn_scheduler_unreserve		mutant_scheduler_unreserve
#define sched_add_tail				mutant_sched_add_tail
#define sched_drop_tail				mutant_sched_drop_tail
#define sched_revoke				mutant_sched_revoke
#define cairn_scheduler_hold			mutant_scheduler_hold
#define cairn_scheduler_plan			mutant_scheduler_plan
#define cairn_scheduler_plan_lane		mutant_scheduler_plan_lane
#define cairn_scheduler_pool			mutant_scheduler_pool
#define cairn_scheduler_report			mutant_scheduler_report
#define cairn_scheduler_reset			mutant_scheduler_reset
#define cairn_scheduler_set_last		mutant_scheduler_set_last
#define cairn_scheduler_speculate		mutant_scheduler_speculate
#define cairn_scheduler_stats			mutant_scheduler_stats
#define cairn_scheduler_stop			mutant_scheduler_stop
#define cairn_scheduler_submit			mutant_scheduler_submit
#define cairn_scheduler_use_lanes		mutant_scheduler_use_lanes
#define cairn_scheduler_verify			mutant_scheduler_verify
#define model_draft				mutant_model_draft
#define model_events				mutant_model_events
#define model_fill				mutant_model_fill
#define model_find				mutant_model_find
#define model_plan				mutant_model_plan
#define model_is_busy				mutant_model_is_busy
#define model_report				mutant_model_report
#define model_revoked				mutant_model_revoked
#define model_stops				mutant_model_stops
#define model_wrong				mutant_model_wrong
#define sched_add_drafts			mutant_sched_add_drafts
#define sched_dequeue				mutant_sched_dequeue
#define sched_drop_shadow			mutant_sched_drop_shadow
#define sched_enqueue				mutant_sched_enqueue
#define sched_expect				mutant_sched_expect
#define sched_fetch				mutant_sched_fetch
#define sched_find				mutant_sched_find
#define sched_finish				mutant_sched_finish
#define sched_fits				mutant_sched_fits
#define sched_forecast				mutant_sched_forecast
#define sched_weigh_lanes			mutant_sched_weigh_lanes
#define sched_leave_lane			mutant_sched_leave_lane
#define sched_enter_lane			mutant_sched_enter_lane
#define sched_blocks				mutant_sched_blocks
#define sched_fork				mutant_sched_fork
#define sched_grow				mutant_sched_grow
#define sched_insert_running			mutant_sched_insert_running
#define sched_keep_all				mutant_sched_keep_all
#define sched_keep_prompt			mutant_sched_keep_prompt
#define sched_move				mutant_sched_move
#define sched_offload				mutant_sched_offload
#define sched_place				mutant_sched_place
#define sched_preempt				mutant_sched_preempt
#define sched_propose				mutant_sched_propose
#define sched_remove_running			mutant_sched_remove_running
#define sched_settle				mutant_sched_settle
#define sched_swap_out				mutant_sched_swap_out
#define sched_unpin				mutant_sched_unpin
#define sched_usable				mutant_sched_usable
#define sched_younger				mutant_sched_younger
#define kv_model_pool				mutant_model_pool
#define kv_model_tree				mutant_model_tree
#define kv_model_scheduler			mutant_model_scheduler

#endif
