// SPDX-License-Identifier: Apache-2.0
/* llguidance - finds and loads the library, and checks its version */
#include "serving/grammar/llguidance.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "primitives/base/error.h"

#define LIBRARY	"libllguidance.so"
#define NAMES	"libllguidance_python.so"	/* the names of Python */
#define VERSION	"llguidance@" LLGUIDANCE_VERSION
#define TYPE	"type `tools/setup.sh grammar` in the source folder, and `make install` if it is installed"

int llguidance_find(char *path, size_t len)
{
	/* of a build or an archive; of an installed program */
	static const char *const places[] = { "lib", "../lib", "../lib/cairn" };
	const char *named = getenv("CAIRN_LLGUIDANCE");
	char program[4096];
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);

	if (named && *named) {
		snprintf(path, len, "%s", named);
		if (!access(path, R_OK))
			return 0;
		return cairn_error(EOPNOTSUPP, "CAIRN_LLGUIDANCE: %s: %s", named, strerror(errno));
	}
	program[n > 0 ? n : 0] = 0;
	if (strrchr(program, '/'))
		*strrchr(program, '/') = 0;
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		snprintf(path, len, "%s/%s/" LIBRARY, program, places[i]);
		if (!access(path, R_OK))
			return 0;
	}
	return cairn_error(EOPNOTSUPP, "constraints need llguidance, which is not installed: " TYPE);
}

/* Loads the library of Python's names beside the library, unless the process has them already. */
static void load_names(const char *path)
{
	char names[4096 + sizeof(NAMES)];
	const char *end = strrchr(path, '/');

	if (dlsym(RTLD_DEFAULT, "Py_IncRef"))
		return;
	snprintf(names, sizeof(names), "%.*s" NAMES, end ? (int)(end - path + 1) : 0, path);
	dlopen(names, RTLD_NOW | RTLD_GLOBAL);	/* without it, loading the library says what is missing */
}

/* The library names its own version first, then those of its parts. */
static int is_version(const char *text)
{
	size_t n = sizeof(VERSION) - 1;

	return !strncmp(text, VERSION, n) && !strchr(".0123456789", text[n] ? text[n] : ' ');
}

int llguidance_load(struct llguidance *lib)
{
#define FUNCTION(name) { "llg_" #name, offsetof(struct llguidance, name) }
	static const struct { const char *name; size_t at; } functions[] = {
		FUNCTION(get_version), FUNCTION(constraint_init_set_defaults), FUNCTION(new_tokenizer_v2),
		FUNCTION(free_tokenizer), FUNCTION(tokenize_bytes), FUNCTION(new_matcher),
		FUNCTION(clone_matcher), FUNCTION(free_matcher), FUNCTION(matcher_get_error),
		FUNCTION(matcher_get_mask_byte_size), FUNCTION(matcher_compute_mask_into),
		FUNCTION(matcher_consume_tokens), FUNCTION(matcher_validate_tokens),
		FUNCTION(matcher_rollback), FUNCTION(matcher_is_stopped), FUNCTION(matcher_is_accepting),
	};
	char path[8192];
	const char *have;
	void *so;

	CAIRN_TRY(llguidance_find(path, sizeof(path)));
	load_names(path);
	so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!so)
		return cairn_error(EOPNOTSUPP, "llguidance: %s", dlerror());
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		void *fn = dlsym(so, functions[i].name);

		memcpy((char *)lib + functions[i].at, &fn, sizeof(fn));
		have = i ? NULL : fn ? lib->get_version() : "no version at all";
		/* the version comes first: another one may lack functions, or have other structs */
		if (have && !is_version(have))
			return cairn_error(EOPNOTSUPP, "%s: is %.64s, this program needs %s: " TYPE, path,
					   have, VERSION);
		if (!fn)
			return cairn_error(EOPNOTSUPP, "%s: has no function %s", path, functions[i].name);
	}
	return 0;
}
