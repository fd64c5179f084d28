// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_queue - attn_queue.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/attention/attn_queue.c"
