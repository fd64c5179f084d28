/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pull_mutants - compiles pulls and prefill workers a second time, under other names and with faults
 * (remote_fault.h)
 *
 * Must be the first header of each pull_mutants_*.c, which then includes the modules themselves.
 */
#ifndef CAIRN_PULL_MUTANTS_H
#define CAIRN_PULL_MUTANTS_H

#define CAIRN_REMOTE_MUTANTS

#define cairn_prefill_epoch_create		mutant_prefill_epoch_create
#define cairn_prefill_epoch_destroy		mutant_prefill_epoch_destroy
#define cairn_prefill_epoch_life		mutant_prefill_epoch_life
#define cairn_prefill_epoch_message		mutant_prefill_epoch_message
#define cairn_prefill_group_base		mutant_prefill_group_base
#define cairn_prefill_group_chunk		mutant_prefill_group_chunk
#define cairn_prefill_group_clear		mutant_prefill_group_clear
#define cairn_prefill_group_collected		mutant_prefill_group_collected
#define cairn_prefill_group_config		mutant_prefill_group_config
#define cairn_prefill_group_create		mutant_prefill_group_create
#define cairn_prefill_group_destroy		mutant_prefill_group_destroy
#define cairn_prefill_group_follow		mutant_prefill_group_follow
#define cairn_prefill_group_join		mutant_prefill_group_join
#define cairn_prefill_group_map			mutant_prefill_group_map
#define cairn_prefill_group_part		mutant_prefill_group_part
#define cairn_prefill_group_pass		mutant_prefill_group_pass
#define cairn_prefill_group_rows		mutant_prefill_group_rows
#define cairn_prefill_group_sum			mutant_prefill_group_sum
#define cairn_prefill_group_tokens		mutant_prefill_group_tokens
#define cairn_prefill_group_worker		mutant_prefill_group_worker
#define cairn_prefill_worker_run		mutant_prefill_worker_run
#define cairn_pull_allow			mutant_pull_allow
#define cairn_pull_begin			mutant_pull_begin
#define cairn_pull_create			mutant_pull_create
#define cairn_pull_destroy			mutant_pull_destroy
#define cairn_pull_drop				mutant_pull_drop
#define cairn_pull_ended			mutant_pull_ended
#define cairn_pull_has_place			mutant_pull_has_place
#define cairn_pull_stats			mutant_pull_stats
#define cairn_pull_wait				mutant_pull_wait
#define prefill_given_up			mutant_prefill_given_up
#define prefill_oldest				mutant_prefill_oldest
#define prefill_send_run			mutant_prefill_send_run
#define pull_end				mutant_pull_end
#define pull_free				mutant_pull_free
#define pull_link_run				mutant_pull_link_run
#define pull_oldest				mutant_pull_oldest
#define pull_take_run				mutant_pull_take_run

#endif
