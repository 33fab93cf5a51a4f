/* Joins the parts: which chat is shown, where events go, what is sent. */

import {call} from "./api.js"
import {Composer} from "./composer.js"
import {failed, toast} from "./dialogs.js"
import {$, copyText, icon, listen, isOther, newId, ownedBy, owner} from "./dom.js"
import {t, translate} from "./i18n.js"
import {listenForKeys} from "./keys.js"
import {messageOf} from "./log.js"
import {Outbox} from "./outbox.js"
import {Panel} from "./panel.js"
import {ScrollKeeper} from "./scroll.js"
import {Sidebar} from "./sidebar.js"
import {Status} from "./status.js"
import {Thread} from "./thread.js"
import {Wire} from "./wire.js"

const KEPT_THREADS = 12
const FIRST_CONNECT_MS = 700
const TITLE_CHARACTERS = 60
/** A frame over 1 MiB would cost the connection. */
const FRAME_BYTES = 1_000_000
const ASK_AGAIN_MS = 3_000
const BARE = location.pathname + location.search

const threads = new Map()
let current = null
let wasOpen = false
let identity = null
let isKnown = false
let isBranching = false
/** Sessions of drafts that the history may still name. */
const moved = new Map()

for (const [id, shape] of Object.entries({menu: "menu", "close-menu": "cross", "new-chat": "plus", "new-chat-narrow": "plus", latest: "down", send: "send", stop: "stop", attach: "clip"})) {
	$(id).prepend(icon(shape))
}
translate(document)

const status = new Status(() => wire.retry())
const sidebar = new Sidebar({opened: route, gone, found: position => (route(), current.find(position)), seen: id => wire.command("seen", {session_id: id}).catch(() => {})})
const scroll = new ScrollKeeper($("scroller"), $("threads"), $("latest"))
const composer = new Composer({send, stop, editLast: () => current.last?.edit()})
const wire = new Wire({onEvent, onFailed, onState, isRefused: () => call("status").then(() => false, ({status}) => status === 401 || status === 403)})
const outbox = new Outbox(wire, {
	session: adopt,
	accepted,
	refused: entry => threadOf(entry)?.refused(entry)
})
const tools = {wire, outbox, scroll, onChange: changed, quote: text => composer.quote(text), branch}
const panel = new Panel({wire, status, session: () => current?.session, say: send})
const greeting = $("hello")

listenForKeys({newChat, search: () => (sidebar.toggle(true), $("search").focus()), copyLast, escape})
addEventListener("hashchange", route)
addEventListener("popstate", route)
document.addEventListener("miniclaw:language", showTitle)
for (const id of ["new-chat", "new-chat-narrow"]) listen(id, "click", newChat)
listen("sessions", "click", event => event.target.closest("a") && sidebar.toggle(false))
document.querySelector(".skip").addEventListener("click", event => {
	event.preventDefault()
	composer.focus()
})
listen("hello", "click", ({target}) => target.closest("button") && send(target.textContent))
$("panels").addEventListener("click", () => sidebar.toggle(false), true)

// Tabs share the login: another user's begins anew.
const logins = new BroadcastChannel(`miniclaw${location.pathname}`)
logins.onmessage = ({data}) => isOther(data) && outbox.leave()
document.addEventListener("miniclaw:left", () => outbox.leave())

sidebar.load().catch(() => {})
route()
Promise.race([identify(), new Promise(go => setTimeout(go, FIRST_CONNECT_MS))]).finally(() => wire.retry())

/** With each connection: whose words are shown and sent. */
function identify() {
	identity ??= call("status").then(known, () => {
		identity = null
		if (wire.isOpen) setTimeout(identify, ASK_AGAIN_MS)
	})
	return identity
}

function known(about) {
	if (!ownedBy(about.user_id)) return outbox.leave()
	if (wire.isNameless) return beginAnew()
	logins.postMessage(owner)
	status.about(about)
	outbox.open(!isKnown)
	if (isKnown) return
	isKnown = true
	composer.load()
	for (const thread of threads.values()) thread.echoAll()
	if (current.draft && current.isEmpty && (outbox.place ?? place())) {
		history.replaceState(null, "", outbox.place ? `#${outbox.place}` : BARE)
		open(place() ?? newId("draft"))
	}
}

/** What came before the user was known may be another's. */
function beginAnew() {
	threads.clear()
	$("threads").replaceChildren()
	current = identity = null
	wire.renew()
	route()
}

/** `ses_…`, `draft_…` of a chat whose first message waits, or nothing. */
function place() {
	return /^#((?:ses|draft)_\w+)$/.exec(location.hash)?.[1]
}

function route() {
	const id = moved.get(place()) ?? place()
	if (id || !current?.draft || !current.isEmpty) open(id ?? newId("draft"))
}

function open(id) {
	show(threads.get(id) ?? begin(id.startsWith("ses") ? {session: id} : {draft: id}))
}

function begin(place) {
	const thread = new Thread(place, tools)
	threads.set(place.session ?? place.draft, thread)
	thread.element.hidden = true
	$("threads").append(thread.element)
	return thread
}

function show(thread) {
	if (thread === current) return
	if (current) {
		current.scrollPlace = scroll.save()
		current.element.hidden = true
	}
	current = thread
	thread.element.hidden = false
	composer.open(thread.session)
	sidebar.select(thread.session)
	changed(thread)
	panel.refresh()
	scroll.restore(thread.scrollPlace)
	bringUpToDate(thread)
	forgetOldThreads()
	if (matchMedia("(pointer: fine)").matches) composer.focus()
}

/** Fresh, it reads the log behind `resume`. */
function bringUpToDate(thread) {
	if (!thread.session || !thread.isStale) return
	if (wire.isOpen || wasOpen) thread.sync()
	else setTimeout(() => thread.isStale && !wire.isOpen && thread.sync(), FIRST_CONNECT_MS)
}

function newChat() {
	sidebar.toggle(false)
	history.pushState(null, "", BARE)
	route()
	composer.focus()
}

function adopt(draft, session) {
	moved.set(draft, session)
	const thread = threads.get(draft)
	if (!thread) return
	threads.delete(draft)
	threads.set(session, thread)
	Object.assign(thread, {session, draft: null, isStale: false})
	const first = outbox.of({session})[0]?.text ?? ""
	sidebar.update(session, {title: first.trim().split("\n")[0].slice(0, TITLE_CHARACTERS)})
	if (thread !== current) return
	history.replaceState(null, "", `#${session}`)
	composer.rename(session)
	sidebar.select(session)
}

function accepted(entry, receipt) {
	const thread = threadOf(entry)
	thread?.accepted(entry, receipt)
	const next = ["new", "resume", "fork"].includes(receipt.name) && receipt.result?.session_id
	if (next && thread === current) location.hash = next
}

function threadOf({session, draft}) {
	return threads.get(session ?? draft)
}

function forgetOldThreads() {
	const idle = [...threads.values()].filter(thread => thread !== current && !thread.active && !(thread.draft && outbox.of(thread).length))
	for (const thread of idle.slice(0, Math.max(0, threads.size - KEPT_THREADS))) {
		thread.element.remove()
		threads.delete(thread.session ?? thread.draft)
	}
}

function gone(id) {
	const thread = threads.get(id)
	threads.delete(id)
	thread?.element.remove()
	if (!thread || thread !== current) return
	composer.rename()
	newChat()
}

async function branch(thread, turn, text) {
	if (isBranching || isTooLong(text)) return false
	isBranching = true
	try {
		const {position, attachments} = await messageOf(thread.session, turn.id)
		await sidebar.fork(thread.session, position - 1)
		send(text, attachments)
		toast(t("branched"))
		return true
	} finally {
		isBranching = false
	}
}

function send(text, attachments = []) {
	if (isTooLong(text)) return false
	current.echo(outbox.add(text, current, attachments))
	if (current.session) sidebar.update(current.session, {})
	else history.replaceState(null, "", `#${current.draft}`)
	scroll.toEnd()
	return true
}

function isTooLong(text) {
	const isLong = new Blob([JSON.stringify(text)]).size > FRAME_BYTES
	if (isLong) toast(t("tooLong"))
	return isLong
}

async function copyLast() {
	if (current.last) toast(t((await copyText(current.last.text)) ? "copied" : "copyFailed"))
}

function escape() {
	if (panel.kind) panel.close()
	else if (current.active?.id) stop()
}

async function stop() {
	await current.cancel().catch(failed)
}

function onEvent(payload) {
	if (payload.name === "session.updated") {
		const {session_id: inside, ...changes} = payload.data
		sidebar.update(payload.session_id ?? inside, changes)
		if (panel.kind === "inbox") panel.refresh()
		showTitle()
		return
	}
	threads.get(payload.session_id)?.take(payload)
}

function onFailed(error) {
	for (const thread of threads.values()) thread.failed(error)
}

function onState(state) {
	status.connection(state)
	for (const thread of threads.values()) thread.connectionChanged(state.name === "open")
	if (state.name === "waiting") {
		identity = null
		outbox.hold()
	}
	if (state.name !== "open") return
	for (const thread of threads.values()) {
		if (wasOpen && (thread === current || thread.active)) thread.sync()
		else thread.isStale = Boolean(thread.session)
	}
	if (!wasOpen && current?.session) current.sync()
	composer.connected()
	if (wasOpen) sidebar.load().catch(() => {})
	wasOpen = true
	identify().then(() => outbox.flush())
}

function changed(thread) {
	if (thread !== current) return
	composer.isRunning = Boolean(thread.active?.id)
	greeting.remove()
	if (thread.isEmpty) thread.element.prepend(greeting)
	$("page").classList.toggle("fresh", thread.isEmpty)
	showTitle()
}

function showTitle() {
	const title = (current?.session && (sidebar.title(current.session) || current.title)) || ""
	$("title").textContent = title || t("newChat")
	document.title = title ? `${title} · miniOpenClaw` : "miniOpenClaw"
}
