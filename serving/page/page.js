"use strict";
/* SPDX-License-Identifier: Apache-2.0 */
/* The page's helpers, and the server's state, polled every second. page_chat.js has the conversation. */
const $ = (id) => document.getElementById(id);
/* Data from the server is only ever set as text, never as markup. */
const say = (id, text) => { $(id).textContent = text; };
const rates = [];
let model = "", last = null;

/* Storage may be forbidden, full or hold anything. Without it, the page forgets its state when closed. */
function store(where, key, value) {
	try {
		window[where].setItem(key, JSON.stringify(value));
	} catch (e) { /* nothing is kept */ }
}

function stored(where, key) {
	try {
		return JSON.parse(window[where].getItem(key));
	} catch (e) {
		return null;
	}
}

function button(text, label, act) {
	const b = document.createElement("button");
	b.type = "button";
	b.textContent = text;
	b.setAttribute("aria-label", label);
	b.addEventListener("click", () => act(b));
	return b;
}

/* Copies a text. Only pages from this machine or over TLS have a clipboard; others copy a selection. */
async function copy(b, text) {
	let done = true;
	try {
		await navigator.clipboard.writeText(text);
	} catch (e) {
		const field = document.createElement("textarea");
		field.value = text;
		field.className = "unseen";
		document.body.append(field);
		field.select();
		done = document.execCommand("copy");
		field.remove();
		b.focus();
	}
	say("live", done ? "Copied." : "The browser does not let this page copy.");
	b.textContent = done ? "Copied" : "Not copied";
	setTimeout(() => { b.textContent = "Copy"; }, 1500);
}

function ask(path, options = {}) {
	const headers = { ...(options.headers || {}) };
	if ($("key").value)
		headers.Authorization = "Bearer " + $("key").value;
	return fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
}

/* Returns the sum of a metric's samples: there may be several with different labels. */
function sum(text, name) {
	let total = 0;
	for (const line of text.split("\n"))
		if (line.startsWith(name) && "{ ".includes(line[name.length]))
			total += Number(line.slice(line.lastIndexOf(" ") + 1)) || 0;
	return total;
}

function health(kind, text) {
	$("health").className = kind;
	if ($("health").textContent !== text)
		say("health", text);
}

function show(text) {
	const now = { at: performance.now(), out: sum(text, "vllm:generation_tokens_total"),
		asked: sum(text, "vllm:prefix_cache_queries_total"),
		found: sum(text, "vllm:prefix_cache_hits_total") };
	const kv = sum(text, "vllm:kv_cache_usage_perc");
	if (last && now.out >= last.out) {
		const rate = (now.out - last.out) * 1000 / (now.at - last.at);
		say("rate", rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en"));
		rates.push(rate);
		if (rates.length > 61)
			rates.shift();
		const top = Math.max(1, ...rates);
		const points = rates.map((r, i) => `${60 - rates.length + 1 + i},${19 - 18 * r / top}`);
		$("line").setAttribute("points", points.join(" "));
	}
	last = now;
	say("running", sum(text, "vllm:num_requests_running"));
	say("waiting", sum(text, "vllm:num_requests_waiting"));
	say("kv", (100 * kv).toFixed(1));
	$("kvbar").value = kv;
	const hits = now.asked > 0 ? now.found / now.asked : 0;
	say("hits", now.asked > 0 ? (100 * hits).toFixed(1) : "0");
	$("hitbar").value = hits;
}

async function poll() {
	try {
		const up = await ask("health");
		if (!up.ok) {
			health("bad", up.status === 503 ? "not ready" : "status " + up.status);
			return;
		}
		const metrics = await ask("metrics");
		if (metrics.status === 401) {
			health("bad", "needs an API key");
			$("more").open = true;
			return;
		}
		if (metrics.ok)
			show(await metrics.text());
		if (!model) {
			const list = await ask("v1/models");
			if (list.ok) {
				model = String((await list.json()).data[0].id);
				say("model", model);
			}
		}
		health("good", "ready");
	} catch (e) {
		health("bad", "no connection");
	}
}

async function tick() {
	await poll();
	setTimeout(tick, document.hidden ? 5000 : 1000);
}

