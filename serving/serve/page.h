/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page - the built-in page: a chat and the server's state, one file without outside resources
 *
 * page.html is part of the program. It asks for an API key itself, so that the page needs none. Its own
 * policy (tools/page.py keeps the hashes) forbids any script and style but its own, and text of the model
 * reaches the document as text nodes alone.
 */
#ifndef CAIRN_PAGE_H
#define CAIRN_PAGE_H

extern const char cairn_page[], cairn_page_end[];	/* as many bytes as lie between them */

#define CAIRN_PAGE_TYPE "text/html; charset=utf-8"

/* { name, value } of the headers that a document cannot give itself. */
#define CAIRN_PAGE_HEADERS								\
	{ "Content-Security-Policy", "frame-ancestors 'none'" },			\
	{ "X-Content-Type-Options", "nosniff" }, { "Cross-Origin-Opener-Policy", "same-origin" },	\
	{ "Cache-Control", "no-cache" }

#endif
