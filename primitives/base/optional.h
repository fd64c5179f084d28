/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optional - the shared libraries that are looked for at run time, and what is missing without them
 *
 * The modules that call a library open it here, and `cairn doctor` reports on the same table.
 */
#ifndef CAIRN_OPTIONAL_H
#define CAIRN_OPTIONAL_H

enum cairn_optional {
	CAIRN_OPTIONAL_NVML,
	CAIRN_OPTIONAL_CUBLASLT,
	CAIRN_OPTIONAL_NVRTC,
	CAIRN_OPTIONAL_CUDNN,
	CAIRN_OPTIONAL_NCCL,
	CAIRN_OPTIONAL_VERBS,
	CAIRN_OPTIONAL_MLX5,
	CAIRN_OPTIONAL_SODIUM,
	CAIRN_OPTIONAL_ZMQ,
	CAIRN_NUM_OPTIONAL
};

struct cairn_optional_library {
	const char *title;
	const char *variable;		/* environment variable that names the file instead; NULL: none */
	const char *files[6];		/* tried in this order, up to a NULL */
	const char *needs;		/* a function that it must have; older versions may lack it */
	const char *lack;		/* what cannot be done without the library */
	const char *install;		/* the command that installs it, or where it comes from */
};

extern const struct cairn_optional_library cairn_optional[CAIRN_NUM_OPTIONAL];

/*
 * Opens a library, with RTLD_NOW | RTLD_LOCAL. Returns NULL if there is none that can be loaded; dlerror()
 * then has the reason for the last file.
 */
void *cairn_optional_open(enum cairn_optional which);

#endif
