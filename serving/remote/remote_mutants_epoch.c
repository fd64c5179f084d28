// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_epoch - attn_epoch.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/attention/attn_epoch.c"
