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

const SHAPES = {
	menu: "M4 7h16M4 12h16M4 17h10",
	plus: "M12 5v14M5 12h14",
	send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
	stop: "M7 7h10v10H7z",
	dots: "M5.5 11.5v1M12 11.5v1M18.5 11.5v1",
	edit: "M4 20l1-4.5L16 4.5l3.5 3.5L8.5 19z",
	fork: "M7 4v16M7 13c0-4 10-2 10-8M14 8l3-3 3 3",
	save: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
	trash: "M4.5 7h15M9 7V4.5h6V7M6.5 7l1 13h9l1-13M10 11v5.5M14 11v5.5",
	search: "M10.5 4.5a6 6 0 1 0 0 12 6 6 0 0 0 0-12M15 15l5 5",
	memory: "M6 4.5h12v15.5l-6-4-6 4z",
	skill: "M12 3.5l2.2 6.3 6.3 2.2-6.3 2.2L12 20.5l-2.2-6.3L3.5 12l6.3-2.2z",
	tool: "M14.7 6.3a4 4 0 0 0-5.4 5L4 16.6 7.4 20l5.3-5.3a4 4 0 0 0 5-5.4L15 12l-3-3z",
	chart: "M5 20V11M12 20V4M19 20v-6M3 20h18",
	inbox: "M4 13l2.5-8h11L20 13v6H4zM4 13h5l1 2.5h4L15 13h5",
	gear: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
	again: "M19 12a7 7 0 1 1-2.3-5.2M19 4v4h-4",
	quote: "M5 8h5v5H5zM10 13c0 2-1.5 3.5-3.5 4M14 8h5v5h-5zM19 13c0 2-1.5 3.5-3.5 4",
	clip: "M19 11l-7.5 7.5a4.5 4.5 0 0 1-6.4-6.4L13 4.3a3 3 0 0 1 4.3 4.3L9.5 16.3a1.5 1.5 0 0 1-2.1-2.1L14 7.5",
	file: "M7 3.5h7l4 4V20.5H7zM14 3.5v4h4",
	copy: "M9 9h10v11H9zM5 15V4h10",
	check: "M5 12.5 10 17.5 19 7",
	cross: "M6.5 6.5 17.5 17.5M17.5 6.5 6.5 17.5",
	right: "M9.5 6 15.5 12 9.5 18",
	down: "M12 5v14M5.5 12.5 12 19l6.5-6.5",
	bulb: "M9.5 17.5h5M10.5 20.5h3M12 3.5a5.5 5.5 0 0 0-3.2 10c.6.5.9 1 .9 1.7v.3h4.6v-.3c0-.7.3-1.2.9-1.7A5.5 5.5 0 0 0 12 3.5z",
	shield: "M12 3.5 5 6v5.5c0 4.3 2.9 7.5 7 9 4.1-1.5 7-4.7 7-9V6zM12 8.5v4M12 15.7v.1",
	warn: "M12 4.5 21 19.5H3zM12 10v4.5M12 17v.1",
	system: "M4 5h16v11H4zM9 20h6M12 16v4",
	light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
	dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z"
}

export function icon(shape) {
	const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg")
	const path = document.createElementNS("http://www.w3.org/2000/svg", "path")
	svg.setAttribute("viewBox", "0 0 24 24")
	svg.setAttribute("class", "icon")
	svg.setAttribute("aria-hidden", "true")
	path.setAttribute("d", SHAPES[shape])
	svg.append(path)
	return svg
}

let owner = null

/** Whose the storage is, told once the server knows; false where it is another's already. */
export const ownedBy = user => (owner ??= user) === user

/** Storage of one user and one path of the host. It may be missing or full (private windows): then it forgets. */
function memory(kind) {
	const name = key => `miniclaw.${location.pathname}.${owner}.${key}`
	return {
		get(key, fallback = null) {
			try {
				return (owner && JSON.parse(globalThis[kind].getItem(name(key)))) ?? fallback
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
