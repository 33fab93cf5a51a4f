/* Starts the page and joins its parts: which chat is shown, where events go, what is sent. */

import {call} from "./api.js"
import {Composer, hello} from "./composer.js"
import {failed, toast} from "./dialogs.js"
import {$, copyText, icon, newId} from "./dom.js"
import {t, translate} from "./i18n.js"
import {listenForKeys} from "./keys.js"
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

const threads = new Map()
let current = null
let wasOpen = false

for (const [id, shape] of Object.entries({menu: "menu", "close-menu": "cross", "new-chat": "plus", "new-chat-narrow": "plus", latest: "down"})) {
	$(id).prepend(icon(shape))
}
translate(document)

const status = new Status(() => wire.retry())
const sidebar = new Sidebar({opened: route, gone, found: position => (route(), current.find(position)), seen: id => wire.command("seen", {session_id: id}).catch(() => {})})
const scroll = new ScrollKeeper($("scroller"), $("threads"), $("latest"))
const composer = new Composer({send, stop, editLast: () => current.last?.edit()})
const wire = new Wire({onEvent, onFailed, onState, isRefused})
const outbox = new Outbox(wire, {
	session: (draft, id) => adopt(draft, id),
	accepted: (entry, receipt) => accepted(entry, receipt),
	refused: (entry, error) => threadOf(entry)?.refused(entry, error)
})
const tools = {wire, outbox, scroll, onChange: changed, quote: text => composer.quote(text), branch}
const panel = new Panel({wire, status, session: () => current?.session, say: text => send(text)})
const greeting = hello(send)

listenForKeys({newChat, search, copyLast, escape})
addEventListener("hashchange", route)
addEventListener("popstate", route)
document.addEventListener("miniclaw:language", () => showTitle())
for (const id of ["new-chat", "new-chat-narrow"]) $(id).addEventListener("click", newChat)
$("sessions").addEventListener("click", event => event.target.closest("a") && sidebar.toggle(false))
$("panels").addEventListener("click", () => sidebar.toggle(false))

wire.retry()
call("status").then(about => status.about(about), () => {})
sidebar.load().catch(() => {})
if (!location.hash && outbox.adopted) history.replaceState(null, "", `#${outbox.adopted}`)
route()

/** The address names the chat: `#ses_…`, or nothing for one that begins. */
function route() {
	const session = decodeURIComponent(location.hash.slice(1)) || null
	if (!session) return show(threads.get("draft") ?? begin({draft: outbox.draft ?? newId("draft")}))
	return show(threads.get(session) ?? begin({session}))
}

function begin(place) {
	const thread = new Thread(place, tools)
	threads.set(place.session ?? "draft", thread)
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

/** On a fresh page the log is read once, behind `resume`; a slow connection does not hold it up. */
function bringUpToDate(thread) {
	if (!thread.session || !thread.isStale) return
	if (wire.isOpen || wasOpen) thread.sync()
	else setTimeout(() => thread.isStale && !wire.isOpen && thread.sync(), FIRST_CONNECT_MS)
}

function newChat() {
	sidebar.toggle(false)
	history.pushState(null, "", location.pathname + location.search)
	route()
	composer.focus()
}

function adopt(draft, session) {
	const thread = threads.get("draft")
	if (thread?.draft !== draft) return
	threads.delete("draft")
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
	// `/new` and `/resume ID`, typed, lead to another chat.
	const next = ["new", "resume", "fork"].includes(receipt.name) && receipt.result?.session_id
	if (next && thread === current) location.hash = next
}

function threadOf({session, draft}) {
	const thread = threads.get(session ?? "draft")
	return session || thread?.draft === draft ? thread : undefined
}

function forgetOldThreads() {
	const idle = [...threads.values()].filter(thread => thread !== current && thread.session && !thread.active)
	for (const thread of idle.slice(0, Math.max(0, threads.size - KEPT_THREADS))) {
		thread.element.remove()
		threads.delete(thread.session)
	}
}

function gone(id) {
	const thread = threads.get(id)
	threads.delete(id)
	thread?.element.remove()
	if (thread && thread === current) newChat()
}

async function branch(thread, turn, text) {
	await sidebar.fork(thread.session, (await thread.positionOf(turn)) - 1)
	send(text)
	toast(t("branched"))
}

function send(text, attachments = []) {
	current.echo(outbox.add(text, current, attachments))
	if (current.session) sidebar.update(current.session, {})
	scroll.toEnd()
}

function search() {
	sidebar.toggle(true)
	$("search").focus()
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
	if (state.name !== "open") return
	for (const thread of threads.values()) {
		if (wasOpen && (thread === current || thread.active)) thread.sync()
		else thread.isStale = Boolean(thread.session)
	}
	if (!wasOpen && current?.session) current.sync()
	if (wasOpen) sidebar.load().catch(() => {})
	wasOpen = true
	outbox.flush()
}

async function isRefused() {
	try {
		await call("status")
		return false
	} catch (error) {
		return error.status === 401 || error.status === 403
	}
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
