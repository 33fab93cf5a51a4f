/* What the server's log holds of a chat. */

import {Refusal, call, query, sessionPath} from "./api.js"
import {h, icon} from "./dom.js"
import {why} from "./i18n.js"

export function getMessages(id, before, limit = 50) {
	return call(sessionPath(id, `/messages${query({limit, html: 1, before})}`))
}

/** The last page, and what `isCut(first message)` wants. */
export async function lastPage(id, isCut) {
	const page = await getMessages(id)
	while (page.more && isCut(page.messages[0])) {
		const older = await getMessages(id, page.messages[0].position)
		page.messages.unshift(...older.messages)
		page.more = older.more
	}
	return page
}

export async function messageOf(session, turn) {
	for (let before; ; ) {
		const {messages, more} = await getMessages(session, before)
		const known = messages.find(message => message.role === "user" && message.turn_id === turn)
		if (known) return known
		if (!more) throw new Refusal("not_begun")
		before = messages[0].position
	}
}

export const byTurn = messages => Map.groupBy(messages, message => message.turn_id ?? `log_${message.position}`)

export function said(messages) {
	const {content, attachments} = messages.find(({role}) => role === "user") ?? {}
	return [content, attachments]
}

export function problem(error, retry) {
	const isGone = error.status === 404 || error.code === "session_not_found"
	const text = isGone ? "chatMissing" : ["loadFailed", {reason: why(error)}]
	return [icon("warn"), h("div", h("span", {t: text}), !isGone && h("button", {t: "retryNow", onclick: retry}))]
}
