/* Making elements, and remembering things in the browser. */

import {attempt, name, say} from "./i18n.js"

export const $ = id => document.getElementById(id)
export const isCovered = () => document.querySelector("dialog[open], :popover-open")
export const listen = (id, type, run) => $(id).addEventListener(type, run)

/** Such as `p.note.small`; `t` and `label` are keys of texts, or `[key, values]`. */
export function h(tag, ...children) {
	const [kind, ...classes] = tag.split(".")
	const element = document.createElement(kind)
	const props = children[0]?.constructor === Object ? children.shift() : {}
	if (kind === "button") element.type = "button"
	if (classes.length) element.className = classes.join(" ")
	for (const [key, value] of Object.entries(props)) {
		if ((value ?? false) === false) continue
		if (key === "t") say(element, ...[value].flat())
		else if (key === "label") name(element, ...[value].flat())
		else if (key.startsWith("on")) element.addEventListener(key.slice(2), value)
		else element.setAttribute(key, value === true ? "" : value)
	}
	element.append(...children.filter(child => (child ?? false) !== false))
	return element
}

export function icon(shape) {
	const sign = $("sign").content.firstChild.cloneNode(true)
	sign.firstChild.setAttribute("href", `#s-${shape}`)
	return sign
}

/** Whose the page is; empty until the server has said so. */
export let owner = ""

const prefix = user => `miniclaw.${location.pathname}.${user}.`

/** The server says who it is; false where the page is another's. */
export function ownedBy(user) {
	if (!owner) {
		owner = user
		attempt(adopt)
	}
	return owner === user
}

const LAST = prefix("last")
attempt(() => localStorage[LAST] && (sessionStorage[LAST] ??= localStorage[LAST]))

/** What is kept while nobody is known becomes nobody's. */
export const isOther = user => user !== (owner || attempt(() => (sessionStorage[LAST] ??= "?")))

/** What was kept before is this user's, unless the tab was another's last. */
function adopt() {
	const last = sessionStorage[LAST] ?? owner
	sessionStorage[LAST] = localStorage[LAST] = owner
	const none = prefix("")
	for (const key of Object.keys(sessionStorage).filter(key => key.startsWith(none))) {
		if (last === owner) sessionStorage[key.replace(none, () => prefix(owner))] = sessionStorage[key]
		delete sessionStorage[key]
	}
}

const memory = kind => ({
	get: key => attempt(() => (owner ? JSON.parse(globalThis[kind][prefix(owner) + key] ?? null) : null), null),
	set: (key, value) =>
		attempt(() => {
			if (!owner && kind === "localStorage") return false
			if (value === null) delete globalThis[kind][prefix(owner) + key]
			else globalThis[kind][prefix(owner) + key] = JSON.stringify(value)
			return true
		}, false),
	all: start =>
		attempt(() => Object.entries(globalThis[kind]).filter(([key]) => key.startsWith(prefix(owner) + start)).map(([, value]) => JSON.parse(value)), [])
})

export const local = memory("localStorage")
export const tab = memory("sessionStorage")

export const sound = text => (text.toWellFormed?.() ?? text).replaceAll("\0", "")

export async function copyText(text) {
	if (navigator.clipboard && isSecureContext && (await navigator.clipboard.writeText(text).then(() => true, () => false))) return true
	const area = h("textarea.offstage", {"aria-hidden": "true"})
	const focused = document.activeElement
	area.value = text
	document.body.append(area)
	area.select()
	const copied = document.execCommand("copy")
	area.remove()
	focused?.focus?.()
	return copied
}

export function announce(text) {
	$("announcer").textContent = text
}

export const newId = prefix =>
	`${prefix}_${Array.from(crypto.getRandomValues(new Uint8Array(12)), byte => byte.toString(16).padStart(2, "0")).join("")}`
