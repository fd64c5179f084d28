// SPDX-License-Identifier: Apache-2.0
/* pull_mutants_prefill - a prefill worker, compiled again with faults (pull_mutants.h) */
#include "serving/remote/prefill/pull_mutants.h"

#include "serving/remote/prefill/prefill_group.c"
#include "serving/remote/prefill/prefill_epoch.c"
#include "serving/remote/prefill/prefill_send.c"
#include "serving/remote/prefill/prefill_worker.c"
