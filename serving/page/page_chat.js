/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conversation. `turns` alternates between user and assistant; while stopper is set, its last element is
 * arriving. Turns of a failed request are removed from it; their boxes ("dead") stay until a message is sent.
 */
const turns = [];	/* { role, content, thought, box, text, acts, change, view } */
const KEPT = ["kind", "temperature", "tokens", "system"];
const ROOM = 500000, MOST = 400;	/* characters and turns that are stored: the newest */
let stopper = null;

/*
 * Stores as many of the last turns as there is room for; the first of them must be the user's. unsent is the
 * message that a failed request has put back into the input.
 */
function save(...unsent) {
	const all = [...turns, ...unsent];
	let room = ROOM, n = all.length;
	while (n > 0 && all.length - n < MOST && (room -= all[n - 1].content.length) >= 0)
		n--;
	n += n % 2;
	store("localStorage", "cairn-turns", all.slice(n).map(({ role, content }) => ({ role, content })));
}

function restore() {
	const old = stored("localStorage", "cairn-turns");
	const fields = Object(stored("localStorage", "cairn-settings"));
	let room = ROOM;
	for (const id of KEPT) {
		const field = $(id), was = field.value;
		if (typeof fields[id] === "string" && fields[id].length < ROOM) {
			field.value = fields[id];
			if (field.value !== fields[id] || !field.checkValidity())
				field.value = was;
		}
	}
	for (const turn of Array.isArray(old) ? old.slice(0, MOST) : []) {
		if (!turn || turn.role !== (turns.length % 2 ? "assistant" : "user") ||
		    typeof turn.content !== "string" || (room -= turn.content.length) < 0)
			break;
		add(turn.role, turn.content);
	}
	if (turns.length % 2) {	/* a message without an answer is sent again by hand */
		$("prompt").value = turns[turns.length - 1].content;
		shorten(turns.length - 1);
		grow();
	}
	controls();
}

/* Appends a turn to the conversation and shows it. */
function add(role, content) {
	const box = document.createElement("article"), mine = role === "user";
	const turn = { role, content, thought: "", box };
	const part = (kind, text) => {
		const e = document.createElement("div");
		e.className = kind;
		e.textContent = text;
		box.append(e);
		return e;
	};
	box.className = "turn " + role;
	box.setAttribute("aria-label", mine ? "your message" : "answer");
	part("who", mine ? "You" : "Model");
	turn.text = part("text", mine ? content : "");
	turn.text.dir = "auto";
	turn.acts = part("acts", "");
	turn.change = mine ? button("Edit", "edit this message", () => edit(turn)) :
		button("Regenerate", "regenerate this answer", () => again(turn));
	turn.acts.append(button("Copy", mine ? "copy this message" : "copy this answer",
		(b) => copy(b, turn.content)), turn.change);
	if (!mine) {
		turn.view = new Markdown(turn.text);
		turn.view.draw(content);
	}
	$("hint").hidden = true;
	$("log").append(box);
	$("log").scrollTop = $("log").scrollHeight;
	turns.push(turn);
	return turn;
}

/* Only the last answer can be made again, and nothing can be changed while an answer is arriving. */
function controls() {
	for (const [i, turn] of turns.entries())
		turn.change.hidden = stopper || (turn.role === "assistant" && i !== turns.length - 1);
	$("send").disabled = stopper !== null;
	$("stop").hidden = stopper === null;
	$("hint").hidden = document.querySelector(".turn") !== null;
}

/* Removes all turns but the first n, and those of failed requests. */
function shorten(n) {
	for (const turn of turns.splice(n))
		turn.box.remove();
	for (const box of document.querySelectorAll(".dead"))
		box.remove();
}

function again(turn) {
	const at = turns.indexOf(turn);
	if (stopper || at < 1)
		return;
	const { content } = turns[at - 1];
	shorten(at - 1);
	send(content);
}

function edit(turn) {
	const field = document.createElement("textarea"), acts = document.createElement("div");
	const end = () => {
		field.remove();
		acts.remove();
		turn.text.hidden = turn.acts.hidden = false;
	};
	const resend = () => {
		if (stopper || !field.value.trim())
			return;
		shorten(turns.indexOf(turn));
		send(field.value);
	};
	const cancel = () => { end(); turn.change.focus(); };
	if (stopper)
		return;
	field.value = turn.content;
	field.rows = Math.min(12, turn.content.split("\n").length + 1);
	field.setAttribute("aria-label", "edited message; what follows it is removed");
	field.addEventListener("keydown", (e) => keys(e, resend, cancel));
	acts.className = "acts";
	acts.append(button("Send", "send the edited message", resend),
		button("Cancel", "keep the message as it was", cancel));
	acts.firstChild.classList.add("main");
	turn.text.hidden = turn.acts.hidden = true;
	turn.box.append(field, acts);
	field.focus();
}

function keys(e, enter, escape) {
	if (e.isComposing || (e.key !== "Escape" && (e.key !== "Enter" || e.shiftKey)))
		return;
	e.preventDefault();
	(e.key === "Enter" ? enter : escape)();
}
function line(box, kind, text) {
	const p = document.createElement("div");
	p.className = kind;
	p.textContent = text;
	box.lastChild.before(p);
}

/* Returns the path and the body of the request for the last turn, which will be the answer. */
function body() {
	const common = { model: model || undefined, stream: true, stream_options: { include_usage: true },
		temperature: Number($("temperature").value) || 0,
		max_tokens: Math.max(1, Math.floor(Number($("tokens").value)) || 1) };
	const messages = turns.slice(0, -1).map(({ role, content }) => ({ role, content }));
	if ($("kind").value === "text")
		return ["v1/completions", { ...common, prompt: messages[messages.length - 1].content }];
	if ($("system").value)
		messages.unshift({ role: "system", content: $("system").value });
	return ["v1/chat/completions", { ...common, messages }];
}

/* Yields the data of each event of a stream. */
async function* events(stream) {
	const reader = stream.getReader(), utf8 = new TextDecoder();
	let rest = "";
	for (;;) {
		const { value, done } = await reader.read();
		const lines = (done ? utf8.decode() : utf8.decode(value, { stream: true })).split("\n");
		lines[0] = rest + lines[0];	/* a line in many pieces is not searched again for each */
		rest = lines.pop();
		for (const l of lines)
			if (l.startsWith("data:"))
				yield l.slice(5).trim();
		if (done)
			return;
	}
}

async function failure(response) {
	try {
		return (await response.json()).error || {};
	} catch (e) {
		return {};
	}
}

/*
 * Shows what has arrived of an answer, once per animation frame, or less often if that takes long: at most a
 * fifth of the time is spent on it, whatever the model writes. If the log was scrolled to its end, it stays
 * there.
 */
function shower(turn) {
	let due = false, rest = 0, thought = null, seen = 0;
	const draw = () => {
		const log = $("log"), begun = performance.now();
		const down = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
		if (turn.thought.length > seen && seen < CHARS) {
			if (!thought) {
				thought = document.createElement("div");
				thought.className = "thought";
				turn.text.before(thought);
			}
			seen = turn.thought.length;
			thought.textContent = turn.thought.slice(0, CHARS).split("\n", LINES).join("\n");
		}
		turn.view.draw(turn.content);
		const end = log.scrollHeight;	/* asks for the layout, so that its time counts */
		if (down)
			log.scrollTop = end;
		rest = 4 * (performance.now() - begun);
	};
	const later = () => {
		if (due)
			return;
		due = true;
		setTimeout(() => requestAnimationFrame(() => {
			due = false;
			if (turn === turns[turns.length - 1] && stopper)
				draw();
		}), rest);
	};
	return { later, draw };
}

async function answer(said, signal) {
	const { box } = said, view = shower(said), begun = performance.now();
	let usage = null, first = 0, end = 0, reason = "";
	const [path, request] = body();
	const response = await ask(path, { method: "POST", signal, body: JSON.stringify(request),
		headers: { "Content-Type": "application/json" } });
	if (!response.ok) {
		const error = await failure(response);
		if (error.code === "no_chat_template" && $("kind").value === "chat") {
			$("kind").value = "text";
			line(box, "note", "No chat template: the model continues the message as plain text.");
			return answer(said, signal);
		}
		throw new Error(`status ${response.status}: ${error.message || response.statusText}`);
	}
	try {
		for await (const data of events(response.body)) {
			if (data === "[DONE]") {
				end = performance.now();
				break;
			}
			const event = JSON.parse(data);
			if (event.error)
				throw new Error(event.error.message || "the server failed");
			usage = event.usage || usage;
			for (const choice of event.choices || []) {
				const delta = choice.delta || choice;
				const piece = delta.content || delta.text || "";
				first = first || (piece && performance.now());
				reason = choice.finish_reason || reason;
				said.thought += delta.reasoning_content || "";
				said.content += piece;
				view.later();
			}
		}
	} finally {
		view.draw();
	}
	if (!end)
		throw new Error("the answer was cut short");
	const n = usage ? usage.completion_tokens : 0;
	const cached = usage && usage.prompt_tokens_details ? usage.prompt_tokens_details.cached_tokens : 0;
	const parts = [`${n} tokens`];
	if (first) {
		parts.push(`first after ${((first - begun) / 1000).toFixed(2)} s`);
		if (n > 1 && end > first)
			parts.push(`then ${((n - 1) * 1000 / (end - first)).toFixed(1)}/s`);
	}
	if (usage)
		parts.push(`prompt of ${usage.prompt_tokens}`);
	if (cached)
		parts.push(`${cached} of them from the cache`);
	if (reason === "length")
		parts.push("cut at the limit");
	line(box, "note", parts.join(", "));
}

async function send(text) {
	if (!text.trim() || stopper)
		return;
	shorten(turns.length);
	const asked = add("user", text), said = add("assistant", ""), { box } = said;
	box.classList.add("busy");
	stopper = new AbortController();
	controls();
	save();
	let unsent = [];
	try {
		await answer(said, stopper.signal);
		say("live", "Answer complete.");
	} catch (e) {
		if (!box.isConnected) {
			/* a new conversation has begun in the meantime */
		} else if (e.name === "AbortError") {
			line(box, "note", "stopped");
			say("live", "Stopped.");
		} else if (e instanceof TypeError && said.content) {
			line(box, "failed", e.message);	/* the connection is lost: what has come is kept */
			say("live", "Failed: " + e.message);
		} else {
			turns.length -= 2;	/* the message goes back to the input, to be sent again */
			unsent = [asked];
			for (const turn of [asked, said]) {
				turn.box.classList.add("dead");
				turn.change.remove();
			}
			$("prompt").value = $("prompt").value || text;
			grow();
			line(box, "failed", e.message);
			say("live", "Failed: " + e.message);
		}
	}
	const idle = [document.body, $("stop"), $("send")].includes(document.activeElement);
	box.classList.remove("busy");
	stopper = null;
	controls();
	save(...unsent);
	if (idle)
		$("prompt").focus();
}

function sendPrompt() {
	const text = $("prompt").value;
	if (!text.trim() || stopper)
		return;
	$("prompt").value = "";
	grow();
	send(text);
}
function grow() {
	$("prompt").rows = Math.min(8, $("prompt").value.split("\n").length);
}

$("form").addEventListener("submit", (e) => { e.preventDefault(); sendPrompt(); });
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (e) => keys(e, sendPrompt, () => stopper && stopper.abort()));
$("stop").addEventListener("click", () => stopper && stopper.abort());
$("clear").addEventListener("click", () => {
	if (stopper)
		stopper.abort();
	shorten(0);
	controls();
	save();
	$("prompt").focus();
});
for (const id of KEPT)
	$(id).addEventListener("change", () => {
		store("localStorage", "cairn-settings", Object.fromEntries(KEPT.map((k) => [k, $(k).value])));
	});
$("key").value = stored("sessionStorage", "cairn-key") || "";
$("key").addEventListener("change", () => {
	store("sessionStorage", "cairn-key", $("key").value);
	poll();
});
window.addEventListener("pagehide", () => stopper && save());	/* what has come of an answer */
restore();
tick();
