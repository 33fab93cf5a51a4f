/* Making elements, and remembering small things in the browser. */

import {name, say} from "./i18n.js"

export const $ = id => document.getElementById(id)
export const listen = (id, type, run) => $(id).addEventListener(type, run)

/** An element such as `p.note.small`. `t` and `label` are keys of texts (or `[key, values]`), `on…` listeners. */
export function h(tag, ...children) {
	const [kind, ...classes] = tag.split(".")
	const element = document.createElement(kind)
	const props = children[0]?.constructor === Object ? children.shift() : {}
	if (kind === "button") element.type = "button"
	if (classes.length) element.className = classes.join(" ")
	for (const [key, value] of Object.entries(props)) {
		if (value === undefined || value === null || value === false) continue
		if (key === "t") say(element, ...[value].flat())
		else if (key === "label") name(element, ...[value].flat())
		else if (key.startsWith("on")) element.addEventListener(key.slice(2), value)
		else element.setAttribute(key, value === true ? "" : value)
	}
	element.append(...children.filter(child => child !== null && child !== undefined && child !== false))
	return element
}

const SVG = "http://www.w3.org/2000/svg"

/** A shape of `index.html`. */
export function icon(shape) {
	const svg = document.createElementNS(SVG, "svg")
	const use = document.createElementNS(SVG, "use")
	svg.setAttribute("viewBox", "0 0 24 24")
	svg.setAttribute("class", "icon")
	svg.setAttribute("aria-hidden", "true")
	use.setAttribute("href", `#${shape}-shape`)
	svg.append(use)
	return svg
}

/** Whose the page and its storage are; empty until the server has said so. */
export let owner = ""

/** False where it is another's already. */
export const ownedBy = user => (owner ||= user) === user

/** Storage of one user and one path of the host. It may be missing or full (private windows): then it forgets. */
function memory(kind) {
	const name = key => `miniclaw.${location.pathname}.${owner}.${key}`
	return {
		get(key, fallback = null) {
			try {
				return (owner ? JSON.parse(globalThis[kind].getItem(name(key))) : null) ?? fallback
			} catch {
				return fallback
			}
		},
		set(key, value) {
			try {
				if (!owner) return
				if (value === null) globalThis[kind].removeItem(name(key))
				else globalThis[kind].setItem(name(key), JSON.stringify(value))
			} catch {
				/* it forgets */
			}
		}
	}
}

export const local = memory("localStorage")
export const tab = memory("sessionStorage")

export async function copyText(text) {
	if (navigator.clipboard && isSecureContext) {
		try {
			await navigator.clipboard.writeText(text)
			return true
		} catch {
			/* the old way below may work */
		}
	}
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
