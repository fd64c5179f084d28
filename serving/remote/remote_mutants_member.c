// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_member - member.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/member/member.c"
