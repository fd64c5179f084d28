/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant - the command `cairn attn-variant`: builds, judges and times a text of attn_variant */
#ifndef CAIRN_CLI_ATTN_VARIANT_H
#define CAIRN_CLI_ATTN_VARIANT_H

/* program: see struct cairn_options. Returns the program's exit status. */
int cairn_cmd_attn_variant(int argc, char **argv, const char *program);

#endif
