/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_events_mutants - the names under which kv_events_mutants.c compiles the modules a second time, with
 * faults
 *
 * Must be the first header of kv_events_mutants.c and of its test, which then calls the faulty modules.
 */
#ifndef CAIRN_KV_EVENTS_MUTANTS_H
#define CAIRN_KV_EVENTS_MUTANTS_H

#define CAIRN_KV_EVENTS_MUTANTS

#define cairn_kv_batch_release		mutant_kv_batch_release
#define cairn_kv_events_address		mutant_kv_events_address
#define cairn_kv_events_close		mutant_kv_events_close
#define cairn_kv_events_flush		mutant_kv_events_flush
#define cairn_kv_events_is_local	mutant_kv_events_is_local
#define cairn_kv_events_listener	mutant_kv_events_listener
#define cairn_kv_events_open		mutant_kv_events_open
#define cairn_kv_events_replay		mutant_kv_events_replay
#define cairn_kv_events_start		mutant_kv_events_start
#define cairn_kv_events_stats		mutant_kv_events_stats_of
#define cairn_kv_events_stop		mutant_kv_events_stop

#endif
