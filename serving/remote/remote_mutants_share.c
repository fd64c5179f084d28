// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_share - share.c, pass.c, lists.c, relay.c, compiled with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/attention/share.c"
#include "serving/remote/attention/pass.c"
#include "serving/remote/attention/lists.c"
#include "serving/remote/attention/relay.c"
