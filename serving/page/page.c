// SPDX-License-Identifier: Apache-2.0
/* page - embeds the page in the program */
#include "serving/page/page.h"

/* CAIRN_PAGE: the path of the whole page, which Kbuild makes from its parts */
__asm__(".pushsection .rodata\n"
	".global cairn_page, cairn_page_end\n"
	"cairn_page:\n"
	".incbin \"" CAIRN_PAGE "\"\n"
	"cairn_page_end:\n"
	".byte 0\n"
	".popsection\n");
