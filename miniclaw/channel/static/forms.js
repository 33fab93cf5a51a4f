/* Menus, forms and sheets. */

import {call, link, sessionPath} from "./api.js"
import {failed, style, toast} from "./dialogs.js"
import {$, h, icon} from "./dom.js"
import {t, why} from "./i18n.js"
import {MAC} from "./keys.js"

await style("forms").catch(() => {})

const MAIN = MAC ? "⌘" : "Ctrl"
const SHORTCUTS = [
	[["Enter"], "send"],
	[["Shift", "Enter"], "keyLine"],
	[["/"], "keySlash"],
	[["↑"], "keyEdit"],
	[["Esc"], "keyEscape"],
	[[MAIN, "K"], "search"],
	[[MAIN, "Shift", "O"], "newChat"],
	[[MAIN, "Shift", ";"], "keyCopy"],
	[[MAIN, "/"], "shortcuts"]
]

const again = element => $(element.id) ?? element

/** Items are `[shape, key, run, style]`. */
export function menu(anchor, label, items) {
	const box = h("div.menu", {role: "menu", popover: "auto", label})
	for (const [shape, key, run, style] of items) {
		const chosen = () => {
			box.hidePopover()
			again(anchor).focus()
			run()
		}
		box.append(h("button", {role: "menuitem", class: style, onclick: chosen}, icon(shape), h("span", {t: key})))
	}
	box.addEventListener("toggle", ({newState}) => {
		if (newState === "open") return
		if (box.contains(document.activeElement) || document.activeElement === document.body) again(anchor).focus()
		box.remove()
	})
	box.addEventListener("keydown", event => {
		const step = {ArrowDown: 1, ArrowUp: -1}[event.key]
		if (event.key === "Tab") box.hidePopover()
		if (!step) return
		event.preventDefault()
		const all = [...box.children]
		all.at((all.indexOf(document.activeElement) + step) % all.length).focus()
	})
	document.body.append(box)
	box.showPopover()
	const at = anchor.getBoundingClientRect()
	box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.offsetWidth - 8))}px`
	box.style.top = `${at.bottom + box.offsetHeight > innerHeight - 8 ? Math.max(8, at.top - box.offsetHeight) : at.bottom + 4}px`
	box.firstChild.focus()
}

function sheet(title, ...children) {
	const heading = h("h2", {t: title})
	const dialog = h("dialog.sheet", {label: title}, heading, ...children)
	const opener = document.activeElement
	dialog.addEventListener("close", () => {
		dialog.remove()
		if (document.activeElement === document.body) again(opener).focus()
	})
	document.body.append(dialog)
	dialog.showModal()
	return dialog
}

/** A form; an error of `run(values)` is shown and loses nothing. */
export function form(title, fields, run, ok = "save", danger = false) {
	const problem = h("p.problem-text", {role: "alert"})
	const rows = fields.map(({name: id, label, value = "", long, options, optional}) => {
		const given = {name: id, required: !optional, maxlength: long ? 4_000 : 200}
		const input = options
			? h("select", {name: id}, ...options.map(([choice, key]) => h("option", {value: choice, t: key, selected: choice === value})))
			: h(long ? "textarea" : "input", {...given, rows: long && 4, autocomplete: "off"})
		if (!options) input.value = value
		return h("label", h("span", {t: label}), input)
	})
	const submit = h("button", {type: "submit", class: danger ? "primary danger" : "primary", t: ok})
	const cancel = h("button", {t: "cancel", onclick: () => dialog.close()})
	const body = h("form", ...rows, problem, h("div.choices", cancel, submit))
	body.addEventListener("submit", async event => {
		event.preventDefault()
		submit.disabled = true
		try {
			await run(Object.fromEntries(new FormData(body)))
			dialog.close()
		} catch (error) {
			problem.textContent = why(error)
			submit.disabled = false
		}
	})
	const dialog = sheet(title, body)
	;(body.querySelector("input, textarea") ?? cancel).focus()
}

export function showShortcuts() {
	const rows = SHORTCUTS.map(([keys, key]) => h("div", h("dt", {t: key}), h("dd", ...keys.map(one => h("kbd", one)))))
	const close = h("button", {t: "close", autofocus: true, onclick: () => dialog.close()})
	const dialog = sheet("shortcuts", h("dl.keys-list", ...rows), h("div.choices", close))
}

export function chatMenu(sidebar, anchor, {session_id: id, title}) {
	const save = format => h("a", {href: link(sessionPath(id, `/export?format=${format}`)), download: ""}).click()
	const rename = async values => sidebar.update(id, await call(sessionPath(id), values, "PATCH"))
	menu(anchor, ["chatMenu", {title}], [
		["edit", "rename", () => form("rename", [{name: "title", label: "title", value: title, optional: true}], rename)],
		["fork", "fork", () => sidebar.fork(id).catch(failed)],
		["save", "exportMarkdown", () => save("markdown")],
		["save", "exportJson", () => save("json")],
		["trash", "delete", () => deleteChat(sidebar, id, title), "danger"]
	])
}

/** It goes unless wanted back, opened or written to. */
function deleteChat(sidebar, id, title) {
	const wasOpen = sidebar.isOpen(id)
	const undo = () => {
		sidebar.stay(id)
		if (wasOpen && !location.hash) location.hash = id
	}
	const remove = () => {
		sidebar.leave(id, () => {})
		call(sessionPath(id), undefined, "DELETE", {keepalive: true}).then(
			() => sidebar.update(id, {deleted: true}),
			error => (sidebar.stay(id), failed(error))
		)
	}
	sidebar.leave(id, toast(t("deleted", {title: title || t("untitled")}), undo, remove))
}

/** In a message's place, until `send(text)` has taken it. */
export function editor(bubble, acts, text, send) {
	const field = h("textarea", {rows: 3, label: "editMessage"})
	const close = () => {
		box.replaceWith(bubble)
		acts.hidden = false
	}
	const submit = async () => {
		if (field.value.trim() && (await send(field.value.trim()))) close()
	}
	field.value = text
	const buttons = h("div.choices", h("button", {t: "cancel", onclick: close}), h("button.primary", {t: "sendBranch", onclick: submit}))
	const box = h("div.editing", field, buttons)
	field.addEventListener("keydown", event => {
		if (event.isComposing || event.keyCode === 229) return
		if (event.key === "Escape") close()
		else if (event.key === "Enter" && !event.shiftKey) submit()
		else return
		event.preventDefault()
		event.stopPropagation()
	})
	bubble.replaceWith(box)
	acts.hidden = true
	field.focus()
}
