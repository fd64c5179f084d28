// SPDX-License-Identifier: Apache-2.0
#include "serving/serve/page.h"

/* CAIRN_PAGE: the file's path, given by the Makefile */
__asm__(".pushsection .rodata\n"
	".global cairn_page, cairn_page_end\n"
	"cairn_page:\n"
	".incbin \"" CAIRN_PAGE "\"\n"
	"cairn_page_end:\n"
	".byte 0\n"
	".popsection\n");
