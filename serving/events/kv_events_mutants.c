// SPDX-License-Identifier: Apache-2.0
/* kv_events_mutants - KV events with fault injection (kv_events_fault.h) */
#include "serving/events/kv_events_mutants.h"

#include "serving/events/kv_events_fault.h"

int cairn_kv_events_fault;

#include "serving/events/kv_events.c"
#include "serving/events/kv_events_send.c"
