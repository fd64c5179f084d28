/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Markdown: headings, paragraphs, lists, quotes, tables, rules, fenced code; code, bold, italic, links.
 *
 * The source is a model's text and may be hostile. It becomes elements and text nodes, never markup; links
 * that are not http or https stay text. The parser takes linear time: it reads every character a bounded
 * number of times per level. Beyond DEPTH levels or ELEMENTS elements it makes plain text. The browser's
 * layout takes seconds for a million lines, so at most CHARS characters and LINES lines are shown.
 */
const DEPTH = 6, ELEMENTS = 5000, CHARS = 300000, LINES = 10000;

const indent = (line) => line.length - line.trimStart().length;
const blank = (line) => line.trim() === "";
const cut = (line, n) => line.slice(Math.min(n, indent(line)));
/* Each leading tab counts as four columns. */
const even = (line) => (line.endsWith("\r") ? line.slice(0, -1) : line).replace(/^[ \t]+/,
	(s) => s.replace(/\t/g, "    "));

function heading(line) {
	return line.match(/^ {0,3}(#{1,6})(?= |$)/);
}

function fence(line) {
	const m = line.match(/^( *)(`{3,}|~{3,})/), info = m && line.slice(m[0].length);
	const is = m && (m[2][0] === "~" || !info.includes("`"));
	return is ? { indent: m[1].length, mark: m[2], info: info.trim() } : null;
}

function closes(line, mark) {
	const end = line.trim();
	return end.length >= mark.length && end[0] === mark[0] && /^(?:`+|~+)$/.test(end);
}

function rule(line) {
	return /^ *[-*_]/.test(line) && /^(?:-{3,}|\*{3,}|_{3,})$/.test(line.replace(/ /g, ""));
}

function item(line) {
	const m = line.match(/^( *)([-*+]|\d{1,9}[.)])(?: {1,4}(?! )| |$)/);
	if (!m || rule(line))
		return null;
	return { indent: m[1].length, mark: m[2], kind: m[2][m[2].length - 1], width: m[0].length };
}

function cells(line) {
	const out = line.trim().split(/(?<!\\)\|/);
	if (out.length > 1 && blank(out[0]))
		out.shift();
	if (out.length > 1 && blank(out[out.length - 1]))
		out.pop();
	return out.map((s) => s.trim());
}

function table(lines, i) {
	return i + 1 < lines.length && lines[i].includes("|") && /^[-:| ]+$/.test(lines[i + 1]) &&
		cells(lines[i + 1]).every((s) => /^:?-+:?$/.test(s)) &&
		cells(lines[i]).length === cells(lines[i + 1]).length;
}

/* Returns whether a line ends the paragraph above it. */
function interrupts(lines, i) {
	const line = lines[i], entry = item(line);
	if (entry)
		return entry.width < line.length && (entry.mark.length === 1 || /^1[.)]$/.test(entry.mark));
	return blank(line) || heading(line) || fence(line) || rule(line) || /^ *>/.test(line) ||
		table(lines, i);
}

/* Returns the address of a link in the form that browsers show, or null. */
function address(text) {
	try {
		const url = text.length > 2000 ? null : new URL(text);
		return url && /^https?:$/.test(url.protocol) ? url.href : null;
	} catch (e) {
		return null;
	}
}

/* Reads "(address)" or "(address "title")"; i: after the parenthesis. Brackets are not allowed in it. */
function destination(s, i) {
	let depth = 0, end = i;
	for (; end < s.length && !/[\s[\]<>"]/.test(s[end]); end++) {
		depth += s[end] === "(" ? 1 : s[end] === ")" ? -1 : 0;
		if (depth < 0)
			break;
	}
	const title = /(?:[ \n]+"[^"[\]]*")?\)/y;
	title.lastIndex = end;
	const href = title.test(s) ? address(s.slice(i, end)) : null;
	return href && { href, after: title.lastIndex };
}

/* Finds code spans (opening backticks: closing ones) and links (opening bracket: the rest), by position. */
function spans(s) {
	const ticks = [], code = new Map(), seen = new Map(), links = new Map(), open = [];
	for (let i = s.indexOf("`"), n; i >= 0; i = s.indexOf("`", i + n)) {
		for (n = 1; s[i + n] === "`"; n++)
			;
		ticks.push([i, n]);
	}
	for (const [at, n] of ticks.reverse()) {
		if (seen.has(n))
			code.set(at, seen.get(n));
		seen.set(n, at);
	}
	const mark = /\\.|`+|[[\]]/gs;
	for (let m; (m = mark.exec(s));) {
		if (m[0][0] === "`" && code.has(m.index))
			mark.lastIndex = code.get(m.index) + m[0].length;
		else if (m[0] === "[")
			open.push(m.index);
		else if (m[0] === "]" && open.length) {
			const from = open.pop(), to = s[m.index + 1] === "(" && destination(s, m.index + 2);
			if (to)
				links.set(from, { ...to, end: m.index });
		}
	}
	return { code, links };
}

const TAGS = { "*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "del" };

class Markdown {
	constructor(root) {
		this.root = root;
		this.left = ELEMENTS;	/* elements that may still be made */
		this.done = 0;		/* characters of the source that are final */
		this.lines = 0;		/* and lines */
		this.kept = 0;		/* children of root that are final */
		this.full = false;	/* no more is shown */
	}

	/*
	 * Shows a source, of which earlier calls have shown a beginning. Only the last block is made anew: a
	 * block is final once the two lines after it are complete, as no rule looks further ahead.
	 */
	draw(source) {
		if (this.full)
			return;
		const room = LINES - this.lines, raw = source.slice(this.done, CHARS).split("\n", room + 1);
		this.full = source.length > CHARS || raw.length > room;
		const lines = raw.slice(0, room).map(even), before = this.lines;
		let at = this.done, from = 0, left = this.left;
		while (this.root.childNodes.length > this.kept)
			this.root.lastChild.remove();
		for (let i = 0; ;) {
			for (; i < lines.length && blank(lines[i]);)
				i++;
			if (i >= lines.length)
				break;
			if (i + 2 < lines.length) {
				for (; from < i; from++)
					at += raw[from].length + 1;
				[this.done, this.lines, left] = [at, before + i, this.left];
				this.kept = this.root.childNodes.length;
			}
			i = this.block(this.root, lines, i, 0);
		}
		this.left = left;
		if (this.full)
			this.make(this.root, "p", "The rest is too long to be shown. Copy takes all of it.")
				.className = "note";
	}

	make(parent, tag, text = "") {
		this.left--;
		const e = document.createElement(tag);
		e.textContent = text;
		parent.append(e);
		return e;
	}

	blocks(parent, lines, depth) {
		for (let i = 0; i < lines.length;)
			i = blank(lines[i]) ? i + 1 : this.block(parent, lines, i, depth);
	}

	/* Makes the block that begins with line i, and returns the index of the line after it. */
	block(parent, lines, i, depth) {
		const line = lines[i], entry = item(line), head = heading(line), code = fence(line);
		if (this.left <= 0 || depth > DEPTH) {
			this.make(parent, "p", lines.slice(i).join("\n"));
			return lines.length;
		}
		if (code)
			return this.code(parent, lines, i, code);
		if (head) {
			let text = line.slice(head[0].length).trim(), end = text.length;
			while (text[end - 1] === "#")
				end--;
			text = end === 0 || text[end - 1] === " " ? text.slice(0, end) : text;
			this.inline(this.make(parent, "h" + Math.min(6, head[1].length + 2)), text.trim());
			return i + 1;
		}
		if (rule(line)) {
			this.make(parent, "hr");
			return i + 1;
		}
		if (/^ *>/.test(line)) {
			const inside = [];
			for (; i < lines.length && /^ *>/.test(lines[i]); i++)
				inside.push(lines[i].replace(/^ *> ?/, ""));
			this.blocks(this.make(parent, "blockquote"), inside, depth + 1);
			return i;
		}
		if (entry)
			return this.list(parent, lines, i, entry, depth);
		if (table(lines, i))
			return this.table(parent, lines, i);
		const text = [line];
		for (i++; i < lines.length && !interrupts(lines, i); i++)
			text.push(lines[i]);
		this.inline(this.make(parent, "p"), text.join("\n").trim());
		return i;
	}

	code(parent, lines, i, { indent: n, mark, info }) {
		const text = [];
		for (i++; i < lines.length && !closes(lines[i], mark); i++)
			text.push(cut(lines[i], n));
		const box = this.make(parent, "div"), bar = this.make(box, "div");
		const pre = this.make(box, "pre");
		const name = info.split(" ")[0].slice(0, 30);
		[box.className, bar.className, pre.tabIndex] = ["code", "bar", 0];
		pre.setAttribute("aria-label", name ? "code, " + name : "code");
		this.make(bar, "span", name || "code");
		this.left--;
		bar.append(button("Copy", "copy this code", (b) => copy(b, pre.textContent)));
		this.make(pre, "code", text.join("\n"));
		return i + 1;
	}

	/* A line belongs to an entry if it is indented by at least two columns more than the list. */
	list(parent, lines, i, first, depth) {
		const box = this.make(parent, first.mark.length > 1 ? "ol" : "ul"), deeper = first.indent + 2;
		if (first.mark.length > 1)
			box.start = parseInt(first.mark, 10);
		for (let entry = first; entry && entry.kind === first.kind && entry.indent < deeper;) {
			if (this.left <= 0) {
				box.append(lines.slice(i).join("\n"));
				return lines.length;
			}
			const inside = [lines[i].slice(entry.width)];
			let next = i + 1;
			for (i++; i < lines.length; i = next) {
				for (next = i; next < lines.length && blank(lines[next]);)
					next++;
				if (next === lines.length || indent(lines[next]) < deeper)
					break;
				for (; i < next; i++)
					inside.push("");
				inside.push(cut(lines[next++], entry.width));
			}
			this.blocks(this.make(box, "li"), inside, depth + 1);
			entry = next < lines.length ? item(lines[next]) : null;
			if (entry && entry.kind === first.kind && entry.indent < deeper)
				i = next;
		}
		return i;
	}

	table(parent, lines, i) {
		const box = this.make(parent, "div"), body = this.make(box, "table");
		const side = (s) => s.endsWith(":") ? (s[0] === ":" ? "middle" : "right") : "";
		const sides = cells(lines[i + 1]).map(side);
		[box.className, box.tabIndex] = ["scroll", 0];
		box.setAttribute("role", "group");
		box.setAttribute("aria-label", "table");
		const fill = (line, tag) => {
			const row = this.make(body, "tr");
			for (const [n, text] of cells(line).slice(0, sides.length).entries()) {
				if (this.left <= 0) {
					row.append(text + " ");
					continue;
				}
				const cell = this.make(row, tag);
				cell.className = sides[n];
				this.inline(cell, text);
			}
		};
		fill(lines[i], "th");
		for (i += 2; i < lines.length && !interrupts(lines, i); i++) {
			if (this.left <= 0) {
				box.append(lines.slice(i).join("\n"));
				return lines.length;
			}
			fill(lines[i], "td");
		}
		return i;
	}

	/*
	 * Open marks are frames: at most one of each kind, and once more inside a link. When a frame ends,
	 * the frames above it turn out not to be marks, and their content joins the frame below.
	 */
	inline(parent, s) {
		const { code, links } = spans(s), frames = [{ mark: "", kids: [] }];
		const next = /[\\`*_~[\]!]|https?:\/\//gi;
		let i = 0, link = null;
		const put = (x) => {
			const kids = frames[frames.length - 1].kids, last = kids.length - 1;
			if (typeof x === "string" && typeof kids[last] === "string")
				kids[last] += x;
			else
				kids.push(x);
		};
		const element = (tag, kids) => {
			const e = document.createElement(tag);
			this.left--;
			for (const k of kids)
				e.append(k);
			return e;
		};
		const reference = (href, kids) => {
			const a = element("a", kids);
			[a.href, a.title, a.rel, a.target] = [href, href, "noopener noreferrer", "_blank"];
			return a;
		};
		const fold = (n) => {
			while (frames.length > n) {
				const { mark, kids } = frames.pop();
				put(mark);
				kids.forEach(put);
			}
		};
		/* Returns the innermost open frame that a run of n marks can end. */
		const match = (c, n) => {
			for (let k = frames.length - 1; k > 0 && !frames[k].link; k--)
				if (frames[k].mark[0] === c && (n > 2 || frames[k].mark.length === n))
					return k;
			return 0;
		};
		const emphasis = (c, n, before, after) => {
			const inner = c === "_" ? /\w/ : /(?!)/;	/* snake_case is no emphasis */
			const opens = /\S/.test(after) && !inner.test(before);
			const ends = /\S/.test(before) && !inner.test(after);
			for (let k; ends && n > 0 && n < 4 && (k = match(c, n));) {
				fold(k + 1);
				const { mark, kids } = frames.pop();
				put(element(TAGS[mark], kids));
				n -= mark.length;
			}
			for (const size of n === 3 ? [1, 2] : [n]) {
				const mark = c.repeat(size);
				if (opens && TAGS[mark] && !match(c, size))
					frames.push({ mark, kids: [] });
				else
					put(mark);
			}
		};
		while (i < s.length && this.left > 0) {
			next.lastIndex = i;
			const m = next.exec(s), at = m ? m.index : s.length, c = s[at];
			put(s.slice(i, at));
			i = at + 1;
			if (!m)
				break;
			if (c === "\\" && /[!-/:-@[-`{-~]/.test(s[i] || "")) {
				put(s[i++]);
			} else if ("`*_~".includes(c)) {
				while (s[i] === c)
					i++;
				const n = i - at, end = c === "`" ? code.get(at) : undefined;
				if (end !== undefined) {
					const text = s.slice(i, end);
					const padded = text[0] === " " && text.endsWith(" ") && !blank(text);
					const pad = padded ? 1 : 0;
					put(element("code", [text.slice(pad, text.length - pad)]));
					i = end + n;
				} else if (c === "`") {
					put(s.slice(at, i));
				} else
					emphasis(c, n, s[at - 1] || "", s[i] || "");
			} else if (c === "!" && links.has(i) && !link) {
				/* an image becomes a link, as the page loads nothing */
			} else if (c === "[" && links.has(at) && !link) {
				link = { ...links.get(at), frame: frames.length };
				frames.push({ mark: "", kids: [], link: true });
			} else if (c === "]" && link && at === link.end) {
				fold(link.frame + 1);
				put(reference(link.href, frames.pop().kids));
				i = link.after;
				link = null;
			} else if (m[0].length > 1 && !link && !/\w/.test(s[at - 1] || "")) {
				let [text] = s.slice(at).match(/^[^\s<>"`[\]\\\u0080-\uffff]+/);
				let n = text.length;
				const after = text.includes("(") ? /[.,:;!?'*_~]/ : /[.,:;!?'*_~)]/;
				while (after.test(text[n - 1]))
					n--;
				text = text.slice(0, n);
				const href = address(text);
				put(href ? reference(href, [text]) : text);
				i = at + Math.max(n, 1);
			} else
				put(c);
		}
		fold(1);
		for (const k of frames[0].kids)
			parent.append(k);
		if (i < s.length)
			parent.append(s.slice(i));
	}
}
