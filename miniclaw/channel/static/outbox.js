/* Messages that the server has not confirmed; each keeps its id, so it is taken once. */

import {newId, tab} from "./dom.js"
import {t} from "./i18n.js"
import {WireError} from "./wire.js"

/** The server takes frames of 1 MiB; a longer one would cost the connection. */
const FRAME_BYTES = 1_000_000

export class Outbox {
	#entries = []
	#isHeld = true
	#running = false

	/** Nothing leaves before `open`; `on` has `session(draft, id)`, `accepted(entry, receipt)` and `refused(entry)`. */
	constructor(wire, on) {
		this.wire = wire
		this.on = on
		addEventListener("beforeunload", event => this.#entries.length && event.preventDefault())
	}

	/** The user is known (again): what this tab keeps of theirs comes back and is sent. */
	open(isFirst) {
		if (isFirst) this.#entries.unshift(...tab.get("outbox", []))
		this.#isHeld = false
		this.#save()
		this.flush()
	}

	/** The connection is gone; another user may come back with it. */
	hold() {
		this.#isHeld = true
	}

	/** Another user is signed in: what waits stays in its user's storage. */
	leave() {
		this.#entries = []
		location.reload()
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

	/** What a page without a chat in its address shows: a draft, or the session that one got while the page was left. */
	get place() {
		const entry = this.#entries.find(({session, draft, problem}) => !session || (draft && !problem))
		return entry && (entry.session ?? entry.draft)
	}

	async flush() {
		if (this.#running) return
		this.#running = true
		try {
			let entry
			while (!this.#isHeld && this.wire.isOpen && (entry = this.#entries.find(({problem}) => !problem))) {
				try {
					await this.#send(entry)
				} catch (error) {
					if (error.code === "timeout") continue
					if (error.isLost) break
					entry.problem = error.message || error.code
					this.#save()
					this.on.refused(entry)
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
