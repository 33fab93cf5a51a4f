/* What is read and changed over HTTP. */

import {owner} from "./dom.js"

const TIMEOUT_MS = 20_000

/** `offline`, `timeout` or `unreachable` where nothing came back. */
export class Refusal extends Error {
	constructor(code, message = "", status = 0) {
		super(message)
		Object.assign(this, {code, status, isLost: code === "offline" || code === "timeout"})
	}
}

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
		throw new Refusal(answer.error?.code ?? (response.status === 413 ? "too_large" : "internal"), answer.error?.message ?? `HTTP ${response.status}`, response.status)
	}
	return answer
}

export const link = path => `./api/${path}${path.includes("?") ? "&" : "?"}user=${owner}`

/** Behind a path: what is given of these. */
export const query = fields => `?${new URLSearchParams(Object.entries(fields).filter(([, value]) => value || value === 0))}`

export const sessionPath = (id, rest = "") => `sessions/${encodeURIComponent(id)}${rest}`
