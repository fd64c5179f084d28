/* SPDX-License-Identifier: Apache-2.0 */
/* plugin - loads a table from a shared object, and completes tables with memory and streams */
#ifndef CAIRN_PLUGIN_H
#define CAIRN_PLUGIN_H

#include "conformance/abi.h"

/*
 * Loads the table of a plug-in into *out and fills in a missing memory block. The shared object stays loaded.
 * -EINVAL: the file does not load, crashes or exits while it loads, lacks cairn_impl_get(), or has another
 * ABI version (if it is older, the message names the plug-in).
 */
int cairn_plugin_open(const char *path, struct cairn_impl *out);

/*
 * Fills in missing members for memory and streams with the built-in ones. -ENODEV: these would be CUDA's, and
 * this build has no CUDA.
 */
int cairn_impl_add_runtime(struct cairn_impl *impl);

#endif
