// SPDX-License-Identifier: Apache-2.0
/* pull_mutants_send - prefill_send.c, compiled again with faults (pull_mutants.h) */
#include "serving/remote/prefill/pull_mutants.h"

#include "serving/remote/prefill/prefill_send.c"
