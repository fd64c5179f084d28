/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page - the built-in web page: a chat and the server's state, one file without external resources
 *
 * The program embeds page.html with page.css and the scripts page*.js inlined. The page asks its user for the
 * API key, so it is itself served without one. The Content-Security-Policy in the file allows only the file's
 * own script and style (tools/page.py updates their hashes). The model's text enters the document only as
 * text nodes and as addresses of http and https links.
 */
#ifndef CAIRN_PAGE_H
#define CAIRN_PAGE_H

extern const char cairn_page[], cairn_page_end[];	/* begin and end of the page */

#define CAIRN_PAGE_TYPE "text/html; charset=utf-8"

/* { name, value } of headers that a document cannot set in a meta element. */
#define CAIRN_PAGE_HEADERS								\
	{ "Content-Security-Policy", "frame-ancestors 'none'" },			\
	{ "X-Content-Type-Options", "nosniff" }, { "Cross-Origin-Opener-Policy", "same-origin" },	\
	{ "Cache-Control", "no-cache" }

#endif
