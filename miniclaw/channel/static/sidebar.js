/* The list of chats. */

import {call, query, sessionPath} from "./api.js"
import {chatMenu, failed, signButton} from "./dialogs.js"
import {$, h, isCovered, listen} from "./dom.js"
import {dates, t} from "./i18n.js"

const DAY_MS = 86_400_000
const TYPING_MS = 200
/** Where the list is a drawer, as in the style sheets. */
const narrow = matchMedia("(max-width: 52rem)")

export class Sidebar {
	#sessions = new Map()
	#current = null
	/** What brings back a chat that was deleted. */
	#leaving = new Map()
	#hits = null
	#hasMore = false
	#timer = 0

	constructor(on) {
		this.on = on
		document.addEventListener("miniclaw:language", () => this.#draw())
		listen("menu", "click", () => this.toggle(true))
		for (const id of ["close-menu", "shade"]) listen(id, "click", () => this.toggle(false))
		listen("search", "input", () => this.#search())
		addEventListener("keydown", event => {
			if (event.key !== "Escape" || !document.body.classList.contains("drawer") || isCovered()) return
			event.preventDefault()
			this.toggle(false)
		})
		addEventListener("visibilitychange", () => this.#look())
		narrow.addEventListener("change", () => this.toggle(false))
	}

	async load() {
		const {sessions, more} = await call("sessions")
		this.#hasMore = more
		this.#sessions = new Map(sessions.map(session => [session.session_id, session]))
		this.#look()
		this.#draw()
	}

	update(id, changes) {
		const before = this.#sessions.get(id)
		if (changes.deleted) {
			this.#sessions.delete(id)
			this.#leaving.delete(id)
			this.on.gone(id)
			return this.#draw()
		}
		const session = {...before, session_id: id, updated_at: new Date().toISOString(), ...changes}
		if (changes.phase === "running") this.#leaving.get(id)?.()
		if (!changes.title) session.title = before?.title || ""
		if (before && before.phase !== "idle" && session.phase === "idle" && !("unread" in changes)) session.unread = true
		this.#sessions.set(id, session)
		this.#look()
		return this.#draw()
	}

	select(id) {
		this.#current = id
		this.#leaving.get(id)?.()
		this.#look()
		this.#draw()
	}

	title(id) {
		return this.#sessions.get(id)?.title ?? ""
	}

	toggle(isOpen) {
		if (document.body.classList.contains("drawer") === isOpen || (isOpen && !narrow.matches)) return
		document.body.classList.toggle("drawer", isOpen)
		$("main").inert = isOpen
		$("menu").setAttribute("aria-expanded", isOpen)
		$(isOpen ? "close-menu" : "menu").focus()
	}

	#look() {
		const session = this.#sessions.get(this.#current)
		if (!session || document.hidden || session.phase !== "idle" || session.unread === false) return
		session.unread = false
		this.on.seen(this.#current)
	}

	#search() {
		clearTimeout(this.#timer)
		const wanted = $("search").value.trim()
		if (wanted) this.#timer = setTimeout(() => this.#find(wanted).catch(failed), TYPING_MS)
		else this.#hits = null
		this.#draw()
	}

	async #find(wanted) {
		const {sessions, hits} = await call(`sessions${query({query: wanted})}`)
		for (const session of sessions) if (!this.#sessions.has(session.session_id)) this.#sessions.set(session.session_id, session)
		if (wanted === $("search").value.trim()) this.#hits = hits
		this.#draw()
	}

	#draw() {
		const wanted = $("search").value.trim().toLowerCase()
		const sorted = [...this.#sessions.values()]
			.filter(({session_id: id, title}) => !this.#leaving.has(id) && (!wanted || title?.toLowerCase().includes(wanted)))
			.sort((a, b) => moment(b) - moment(a))
		const groups = Map.groupBy(sorted, session => (wanted ? "titles" : age(moment(session))))
		const format = dates()
		const list = $("sessions")
		const focused = list.contains(document.activeElement) && document.activeElement.id
		list.replaceChildren(...[...groups].flatMap(([key, sessions]) => this.#group(key, sessions.map(session => this.#row(session, format)))))
		const found = (wanted && this.#hits?.filter(hit => !this.#leaving.has(hit.session_id))) || []
		if (found.length) list.append(...this.#group("messages", found.map(hit => this.#hitRow(hit))))
		if (!sorted.length && !found.length) list.append(h("p.muted", {t: wanted ? "noneFound" : "noChats"}))
		if (this.#hasMore && !wanted) list.append(h("p.muted", {t: "moreChats"}))
		if (focused) $(focused)?.focus()
		$("waiting").textContent = [...this.#sessions.values()].filter(({phase}) => phase === "waiting_approval").length || ""
	}

	#group(key, rows) {
		return [h("h3", t(key)), h("ul", {"aria-label": t(key)}, ...rows.map(row => h("li", ...row)))]
	}

	#row(session, format) {
		const {session_id: id, title, phase, unread} = session
		const state = phase === "running" ? "running" : phase === "waiting_approval" ? "waiting" : unread ? "fresh" : null
		const mark = state && h("span", {class: `mark ${state}`}, h("span.offstage", t(state)))
		const shown = title || t("untitled")
		const link = h("a", {id: `row-${id}`, href: `#${id}`, "aria-current": id === this.#current && "page"}, h("span.title", shown), mark)
		link.title = `${shown}\n${format.format(moment(session))}`
		const more = signButton("dots", ["chatMenu", {title: shown}], () => chatMenu(this, more, session))
		more.setAttribute("aria-haspopup", "menu")
		more.id = `menu-${id}`
		return [link, more]
	}

	async fork(id, position) {
		const row = await call(sessionPath(id, "/fork"), position === undefined ? {} : {position})
		this.update(row.session_id, row)
		history.pushState(null, "", `#${row.session_id}`)
		this.on.opened()
	}

	leave(id, back) {
		this.#leaving.set(id, back)
		if (id === this.#current) this.on.gone(id)
		this.#draw()
	}

	isOpen = id => id === this.#current

	stay(id) {
		this.#leaving.delete(id)
		this.#draw()
	}

	#hitRow({session_id: id, title, excerpt, position}) {
		const open = event => {
			event.preventDefault()
			location.hash = id
			this.on.found(position)
		}
		return [h("a.hit", {id: `hit-${id}-${position}`, href: `#${id}`, onclick: open}, h("span.title", title || t("untitled")), h("span.muted", excerpt))]
	}
}

const moment = ({updated_at: at}) => Date.parse(at) || 0

function age(when) {
	const midnight = new Date().setHours(0, 0, 0, 0)
	if (when >= midnight) return "today"
	if (when >= midnight - DAY_MS) return "yesterday"
	return when >= midnight - 7 * DAY_MS ? "week" : "earlier"
}
