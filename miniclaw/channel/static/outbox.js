/* Messages that the server has not confirmed. Each keeps its id until it has, so it is sent once, however often. */

import {newId, tab} from "./dom.js"
import {t} from "./i18n.js"
import {WireError} from "./wire.js"

/** The server takes frames of 1 MiB; a longer one would cost the connection. */
const FRAME_BYTES = 1_000_000

export class Outbox {
	#entries = tab.get("outbox", [])
	#running = false

	/** `on` has `session(draft, id)`, `accepted(entry, receipt)` and `refused(entry, error)`. */
	constructor(wire, on) {
		this.wire = wire
		this.on = on
	}

	/** A draft is a chat without a session yet; its first message makes one. */
	add(text, {session, draft}, attachments = []) {
		const entry = {id: newId("msg"), text, session, draft, attachments}
		this.#entries.push(entry)
		this.#save()
		this.flush()
		return entry
	}

	remove(entry) {
		this.#entries = this.#entries.filter(other => other.id !== entry.id)
		this.#save()
	}

	of({session, draft}) {
		return this.#entries.filter(entry => (session ? entry.session === session : entry.draft === draft))
	}

	get draft() {
		return this.#entries.find(entry => !entry.session)?.draft
	}

	/** The session that such a draft had just got: the address of a page that was being left could not take it in. */
	get adopted() {
		return this.#entries.find(entry => entry.draft && entry.session)?.session
	}

	async flush() {
		if (this.#running) return
		this.#running = true
		try {
			while (this.wire.isOpen && this.#entries.length) {
				const entry = this.#entries[0]
				try {
					await this.#send(entry)
				} catch (error) {
					if (error.isLost) {
						if (error.code === "timeout") continue
						break
					}
					this.remove(entry)
					this.on.refused(entry, error)
				}
			}
		} finally {
			this.#running = false
		}
	}

	async #send(entry) {
		if (new Blob([JSON.stringify(entry.text)]).size > FRAME_BYTES) throw new WireError("too_large", t("tooLong"))
		if (!entry.session) {
			const {session_id: id} = await this.wire.command("new", {}, {id: `new_${entry.draft}`})
			for (const other of this.of({draft: entry.draft})) other.session = id
			this.#save()
			this.on.session(entry.draft, id)
		}
		const attachments = entry.attachments.map(({id}) => ({id}))
		const receipt = await this.wire.sendText(entry.id, {text: entry.text, session_id: entry.session, ...(attachments.length && {attachments})})
		this.remove(entry)
		this.on.accepted(entry, receipt)
	}

	#save() {
		tab.set("outbox", this.#entries.length ? this.#entries : null)
	}
}
