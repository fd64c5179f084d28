// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_link_stream - attn_remote_stream.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/attention/attn_remote_stream.c"
