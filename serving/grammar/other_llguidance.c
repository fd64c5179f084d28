// SPDX-License-Identifier: Apache-2.0
/* other_llguidance - a library of another version, for grammar_fault_test.c and serve_structured_test.c */
const char *llg_get_version(void);

const char *llg_get_version(void)
{
	return "llguidance@1.9.10 derivre@0.4.0";
}
