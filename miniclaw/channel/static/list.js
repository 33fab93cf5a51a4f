/* Headings and lists of the panels. */

import {failed, menu, signButton} from "./dialogs.js"
import {h} from "./dom.js"

export const heading = (key, ...more) => h("h3", h("span", {t: key}), ...more)

export function list(rows, empty = "nothingHere") {
	if (!rows.length) return h("p.muted", {t: empty})
	return h("ul.cards", ...rows.map(card))
}

function card({title, text, note, tags = [], buttons = [], more = []}) {
	const about = [note].flat().filter(Boolean).join(" · ")
	const marks = tags.filter(([what]) => what).map(([what, style = ""]) => h("span", {class: `tag ${style}`}, what))
	const dots = more.length && signButton("dots", ["actions", {title: (title || text).slice(0, 60)}], () => menu(dots, ["actions", {title: ""}], more))
	const acts = buttons.map(([key, run, style]) => h("button", {class: style, t: key, onclick: ({currentTarget}) => once(currentTarget, run)}))
	return h(
		"li.card",
		h("div.card-head", h("div.card-title", title && h("strong", title), ...marks), dots || null),
		text && h("p", text),
		about && h("p.muted", about),
		acts.length > 0 && h("div.choices", ...acts)
	)
}

async function once(button, run) {
	button.disabled = true
	await run().catch(failed)
	button.disabled = false
}
