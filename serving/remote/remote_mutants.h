/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_mutants - compiles remote attention a second time, under other names and with faults
 * (remote_fault.h)
 *
 * Must be the first header of each remote_mutants_*.c, which then includes the modules themselves.
 */
#ifndef CAIRN_REMOTE_MUTANTS_H
#define CAIRN_REMOTE_MUTANTS_H

#define CAIRN_REMOTE_MUTANTS
#define CAIRN_EPOCH_LAYER_MS	(cairn_remote_fault ? 1500 : 60000)

#define CAIRN_EPOCH_STREAM_MS	CAIRN_EPOCH_LAYER_MS
#define cairn_share_streams_over		mutant_share_streams_over

#define cairn_attn_epoch_create			mutant_attn_epoch_create
#define cairn_attn_epoch_destroy		mutant_attn_epoch_destroy
#define cairn_attn_epoch_life			mutant_attn_epoch_life
#define cairn_attn_epoch_plan			mutant_attn_epoch_plan
#define attn_epoch_await_page			mutant_epoch_await_page
#define attn_epoch_turn				mutant_epoch_turn
#define attn_epoch_layer			mutant_epoch_layer
#define attn_epoch_end_pass			mutant_epoch_end_pass
#define attn_queue_create			mutant_queue_create
#define attn_queue_destroy			mutant_queue_destroy
#define attn_queue_plan				mutant_queue_plan
#define attn_queue_stop				mutant_queue_stop
#define attn_stream_begin			mutant_stream_begin
#define attn_stream_create			mutant_stream_create
#define attn_stream_destroy			mutant_stream_destroy
#define attn_stream_end				mutant_stream_end
#define attn_stream_watch			mutant_stream_watch
#define cairn_attn_remote_finish		mutant_attn_remote_finish
#define cairn_attn_remote_settled		mutant_attn_remote_settled
#define cairn_attn_remote_number		mutant_attn_remote_number
#define cairn_attn_remote_side			mutant_attn_remote_side
#define cairn_attn_remote_replayed		mutant_attn_remote_replayed
#define cairn_share_results			mutant_share_results
#define cairn_transport_get			mutant_transport_get	/* remote_mutants_test.c */
#define cairn_channel_receive			mutant_channel_receive	/* remote_watch_test.h */
#define waitpid					mutant_waitpid		/* remote_watch_test.h */
#define cairn_attn_remote_begin			mutant_attn_remote_begin
#define cairn_attn_remote_create		mutant_attn_remote_create
#define cairn_attn_remote_destroy		mutant_attn_remote_destroy
#define attn_models_assign			mutant_models_assign
#define attn_models_connect			mutant_models_connect
#define attn_models_introduce			mutant_models_introduce
#define attn_models_open			mutant_models_open
#define attn_remote_await_page			mutant_remote_await_page
#define attn_remote_close			mutant_remote_close
#define attn_remote_connect_peer		mutant_remote_connect_peer
#define attn_remote_epoch			mutant_remote_epoch
#define attn_remote_make			mutant_remote_make
#define attn_remote_open_peer			mutant_remote_open_peer
#define attn_restore				mutant_attn_restore
#define cairn_attn_remote_has_journal		mutant_attn_remote_has_journal
#define journal_place				mutant_journal_place
#define journal_thread				mutant_journal_thread
#define journal_write_on_device			mutant_journal_write_on_device
#define cairn_journal_begin			mutant_journal_begin
#define cairn_journal_commit			mutant_journal_commit
#define cairn_journal_create			mutant_journal_create
#define cairn_journal_destroy			mutant_journal_destroy
#define cairn_journal_drain			mutant_journal_drain
#define cairn_journal_drop			mutant_journal_drop
#define cairn_journal_fill			mutant_journal_fill
#define cairn_journal_page			mutant_journal_page
#define cairn_journal_rows			mutant_journal_rows
#define cairn_journal_side			mutant_journal_side
#define cairn_journal_stats			mutant_journal_stats
#define cairn_attn_remote_answer		mutant_attn_remote_answer
#define cairn_attn_remote_blob			mutant_attn_remote_blob
#define cairn_attn_remote_connect		mutant_attn_remote_connect
#define cairn_attn_remote_follow		mutant_attn_remote_follow
#define cairn_attn_remote_overdue		mutant_attn_remote_overdue
#define cairn_attn_remote_result		mutant_attn_remote_result
#define cairn_attn_result_check			mutant_attn_result_check
#define cairn_attn_remote_run			mutant_attn_remote_run
#define cairn_attn_remote_link			mutant_attn_remote_link
#define cairn_attn_remote_lost			mutant_attn_remote_lost
#define cairn_attn_remote_restart		mutant_attn_remote_restart
#define cairn_attn_remote_stats			mutant_attn_remote_stats
#define cairn_attn_worker_run			mutant_attn_worker_run
#define cairn_lead_address			mutant_lead_address
#define cairn_lead_attention			mutant_lead_attention
#define cairn_lead_blob				mutant_lead_blob
#define cairn_lead_create			mutant_lead_create
#define cairn_lead_destroy			mutant_lead_destroy
#define cairn_lead_gather			mutant_lead_gather
#define cairn_lead_has				mutant_lead_has
#define cairn_lead_lost				mutant_lead_lost
#define cairn_lead_model_rank			mutant_lead_model_rank
#define cairn_lead_models			mutant_lead_models
#define cairn_lead_pid				mutant_lead_pid
#define cairn_lead_port				mutant_lead_port
#define cairn_lead_prefill			mutant_lead_prefill
#define cairn_lead_ready			mutant_lead_ready
#define cairn_lead_report			mutant_lead_report
#define cairn_lead_send				mutant_lead_send
#define cairn_lead_stats			mutant_lead_stats
#define cairn_lead_take				mutant_lead_take
#define cairn_lead_why				mutant_lead_why
#define cairn_lists_create			mutant_lists_create
#define cairn_lists_free			mutant_lists_free
#define cairn_lists_make			mutant_lists_make
#define cairn_lists_row_pages			mutant_lists_row_pages
#define cairn_relay_give			mutant_relay_give
#define cairn_relay_take			mutant_relay_take
#define cairn_relay_taken			mutant_relay_taken
#define cairn_remote_pass_most			mutant_remote_pass_most
#define cairn_remote_pass_read			mutant_remote_pass_read
#define cairn_remote_pass_write			mutant_remote_pass_write
#define cairn_member_run			mutant_member_run
#define cairn_share_assign			mutant_share_assign
#define cairn_share_digest			mutant_share_digest
#define cairn_share_model			mutant_share_model
#define cairn_share_model_free			mutant_share_model_free
#define cairn_share_sizes			mutant_share_sizes
#define lead_end_process			mutant_lead_end_process
#define lead_lose				mutant_lead_lose
#define lead_lost				mutant_lead_lost_of
#define lead_ranked				mutant_lead_ranked
#define lead_refused				mutant_lead_refused
#define lead_start_failed			mutant_lead_start_failed
#define lead_start_process			mutant_lead_start_process
#define lead_start_secret			mutant_lead_start_secret
#define lead_take_guest				mutant_lead_take_guest
#define lead_wake				mutant_lead_wake
#define lead_why				mutant_lead_why_of_rank
#define lead_why_of				mutant_lead_place_of_why
#define lead_watch_start			mutant_lead_watch_start
#define lead_watch_stop				mutant_lead_watch_stop

#endif
