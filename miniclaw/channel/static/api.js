/* What is read and changed over HTTP. */

import {owner} from "./dom.js"

const TIMEOUT_MS = 20_000

/** What the server refused; `offline` or `timeout` where nothing came back over the socket, else `unreachable`. */
export class Refusal extends Error {
	constructor(code, message = "", status = 0) {
		super(message)
		Object.assign(this, {code, status, isLost: code === "offline" || code === "timeout"})
	}
}

/** Ask `./api/…`; a body is sent as JSON, or as it is where it is a form. */
export async function call(path, body, method = body === undefined ? "GET" : "POST", more = {}) {
	const isForm = body instanceof FormData
	let response
	try {
		response = await fetch(`./api/${path}`, {
			method,
			headers: {Accept: "application/json", ...(owner && {"X-Miniclaw-User": owner}), ...(method !== "GET" && !isForm && {"Content-Type": "application/json"})},
			body: body === undefined || isForm ? body : JSON.stringify(body),
			signal: AbortSignal.timeout(isForm ? 10 * TIMEOUT_MS : TIMEOUT_MS),
			...more
		})
	} catch {
		throw new Refusal("unreachable")
	}
	const answer = await response.json().catch(() => ({}))
	if (!response.ok) {
		if (response.status === 409) document.dispatchEvent(new Event("miniclaw:left"))
		throw new Refusal(answer.error?.code ?? "internal", answer.error?.message ?? `HTTP ${response.status}`, response.status)
	}
	return answer
}

/** The address of a download. */
export const link = path => `./api/${path}${path.includes("?") ? "&" : "?"}user=${owner}`

export const sessionPath = (id, rest = "") => `sessions/${encodeURIComponent(id)}${rest}`

/** Oldest first; `before` is the position of the first message that is shown. */
export function getMessages(id, before) {
	const query = new URLSearchParams({limit: 50, html: 1, ...(before === undefined ? {} : {before})})
	return call(sessionPath(id, `/messages?${query}`))
}

/** The user's message of a turn as the log has it, with position and attachments. */
export async function messageOf(session, turn) {
	for (let before; ; ) {
		const {messages, more} = await getMessages(session, before)
		const known = messages.find(message => message.role === "user" && message.turn_id === turn)
		if (known) return known
		if (!more) throw new Refusal("not_found")
		before = messages[0].position
	}
}
