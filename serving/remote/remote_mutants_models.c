// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_models - attn_models.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/models/attn_models.c"
