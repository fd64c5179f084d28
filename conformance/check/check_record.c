// SPDX-License-Identifier: Apache-2.0
/* check_record - one result as a JSON line, as a JUnit test case, and as the command that repeats it */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/check/check_report.h"
#include "conformance/tables/program.h"

/* Appends a word, quoted so that a shell reads it back unchanged. */
static void add_word(char *line, size_t len, const char *word)
{
	static const char harmless[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				       "0123456789_-+.,/:=@%";
	size_t n = strlen(line);
	int plain = word[0] && !word[strspn(word, harmless)];

	if (n && n < len - 1)
		line[n++] = ' ';
	if (!plain && n < len - 1)
		line[n++] = '\'';
	for (; *word && n < len - 1; word++) {
		line[n] = *word;
		n += 1;
		if (*word == '\'' && n + 4 < len) {	/* 'it'\''s' */
			memcpy(line + n - 1, "'\\''", 4);
			n += 3;
		}
	}
	if (!plain && n < len - 1)
		line[n++] = '\'';
	line[n] = 0;
}

void cairn_check_again(const struct cairn_check_family *r, const struct cairn_check_row *w,
		       const struct cairn_check_result *x, char *line, size_t len)
{
	const struct cairn_options *opt = r->opt;
	char seed[32];

	line[0] = 0;
	add_word(line, len, opt->program ? opt->program : "cairn");
	add_word(line, len, "check");
	if (w->impl_option) {
		add_word(line, len, "--impl");
		add_word(line, len, w->impl_option);
	}
	if (opt->device_text) {
		add_word(line, len, "--device");
		add_word(line, len, opt->device_text);
	}
	if (opt->mustpass_file && w->impl) {
		add_word(line, len, "--mustpass");
		add_word(line, len, opt->mustpass_file);
	}
	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)x->seed);
	add_word(line, len, "--seed");
	add_word(line, len, seed);
	add_word(line, len, r->cases[x->at].name);
}

/* Returns the diagnostics of a result, then how its process died; the caller frees the text. May be NULL. */
static char *text_of(const struct cairn_check_result *x)
{
	size_t notes = x->notes ? strlen(x->notes) : 0, text = x->text ? strlen(x->text) : 0;
	char *all = malloc(notes + text + 2);

	if (!all)
		return NULL;
	memcpy(all, x->notes ? x->notes : "", notes);
	memcpy(all + notes, x->text ? x->text : "", text + 1);
	while (!text && notes && all[notes - 1] == '\n')
		all[--notes] = 0;
	return all;
}

/* Writes a JSON string. A plug-in's text may be invalid UTF-8; it is then written byte by byte. */
static void write_string(FILE *f, const char *name, const char *text)
{
	json_t *s = json_string(text);

	fprintf(f, ",\"%s\":", name);
	if (s) {
		json_dumpf(s, f, JSON_ENCODE_ANY);
		json_decref(s);
		return;
	}
	fputc('"', f);
	for (; *text; text++)
		if (*text < 0x20 || *text == '"' || *text == '\\' || *text > 0x7e)
			fprintf(f, "\\u%04x", (unsigned char)*text);
		else
			fputc(*text, f);
	fputc('"', f);
}

void cairn_check_json(FILE *f, const struct cairn_check_family *r, const struct cairn_check_row *w,
		      const struct cairn_check_result *x)
{
	const char *verdict = x->verdict == 'P' ? "pass" : x->verdict == 'S' ? "skip" : "fail";
	char again[8192], *text = text_of(x);

	fprintf(f, "{\"v\":1,\"check\":\"%s\"", r->cases[x->at].name);
	write_string(f, "impl", w->impl ? w->impl : "host");
	fprintf(f, ",\"verdict\":\"%s\",\"err_over_bound\":%.4g,\"seconds\":%.4f,\"seed\":%llu,"
		"\"source\":\"%s\"", verdict, x->ratio, x->seconds, (unsigned long long)x->seed,
		cairn_source_digest());
	if (x->verdict != 'P' && text)
		write_string(f, "text", text);
	if (x->verdict == 'F' || x->verdict == 'N') {
		cairn_check_again(r, w, x, again, sizeof(again));
		write_string(f, "again", again);
	}
	fprintf(f, "}\n");
	free(text);
}

/* Writes text to XML. Control characters, which XML 1.0 cannot hold, become spaces. */
static void write_xml(FILE *f, const char *text)
{
	for (; text && *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '&' || c == '<' || c == '>' || c == '"' || c == '\n')
			fprintf(f, "&#%d;", c);
		else
			fputc(c < 0x20 || c > 0x7e ? ' ' : c, f);
	}
}

void cairn_check_junit_suite(FILE *f, const char *suite)
{
	fprintf(f, "<testsuite name=\"");
	write_xml(f, suite);
	fprintf(f, "\">\n");
}

void cairn_check_junit(FILE *f, const struct cairn_check_family *r, const struct cairn_check_row *w,
		       const struct cairn_check_result *x, const char *suite)
{
	char again[8192], *text = text_of(x);

	fprintf(f, "<testcase classname=\"");
	write_xml(f, suite);
	fprintf(f, "\" name=\"%s\" time=\"%.3f\">", r->cases[x->at].name, x->seconds);
	if (x->verdict == 'S') {
		fprintf(f, "<skipped message=\"");
		write_xml(f, x->text);
		fprintf(f, "\"/>");
	} else if (x->verdict != 'P') {
		cairn_check_again(r, w, x, again, sizeof(again));
		fprintf(f, "<failure message=\"");
		write_xml(f, text);
		fprintf(f, "\">again: ");
		write_xml(f, again);
		fprintf(f, "</failure>");
	}
	fprintf(f, "</testcase>\n");
	free(text);
}
