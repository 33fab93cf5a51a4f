/* The panels of usage, waiting things and settings. */

import {call, link, query, sessionPath} from "./api.js"
import {ApprovalPart} from "./cards.js"
import {failed, showShortcuts} from "./dialogs.js"
import {h} from "./dom.js"
import {date, language, number, t, toggleLanguage} from "./i18n.js"
import {heading, list} from "./list.js"

const DAYS = 14
const money = cost => (typeof cost === "number" ? `$${cost < 1 ? cost.toPrecision(2) : cost.toFixed(2)}` : "–")

async function loadUsage() {
	const {usage} = await call("usage")
	if (!usage.length) return [h("p.muted", {t: "noUsage"})]
	const days = Map.groupBy(usage, row => row.day)
	const tokens = rows => rows.reduce((sum, row) => sum + row.input_tokens + row.output_tokens, 0)
	const cost = rows => rows.reduce((sum, row) => (typeof row.cost === "number" ? (sum ?? 0) + row.cost : sum), null)
	const most = Math.max(...[...days.values()].map(tokens))
	const cells = (tag, texts) => h("tr", ...texts.map((text, index) => h(tag, index ? {class: "number"} : {}, text)))
	const parts = [...days].slice(0, DAYS).map(([day, rows]) => {
		const bar = h("div.bar", {role: "presentation"})
		bar.style.width = `${Math.max(1, (100 * tokens(rows)) / most)}%`
		const head = cells("th", [t("model"), t("input"), t("output"), t("cost")])
		const body = rows.map(row => cells("td", [row.model, number(row.input_tokens), number(row.output_tokens), money(row.cost)]))
		const about = h("div.card-head", h("strong", day), h("span.muted", `${number(tokens(rows))} token · ${money(cost(rows))}`))
		return h("section.card", about, bar, h("table", h("thead", head), h("tbody", ...body)))
	})
	const total = h("p.total", {t: ["usageTotal", {tokens: number(tokens(usage)), cost: money(cost(usage))}]})
	return [total, ...parts]
}

async function loadInbox({refresh}) {
	const [{approvals}, {deliveries}, {timers}] = await Promise.all([call("approvals"), call("deliveries"), call("timers")])
	const decide = async (id, decision) => {
		await call(`approvals/${encodeURIComponent(id)}`, {decision})
		setTimeout(refresh, 300)
	}
	const asked = approvals.map(approval => {
		const part = new ApprovalPart(approval, decide)
		part.element.prepend(h("a.muted", {href: `#${approval.session_id}`, t: "openChat"}))
		return part.element
	})
	const again = ({key}) => () => call(`deliveries/${encodeURIComponent(key)}/retry`, {}).then(refresh)
	const deliveryRow = row => ({
		title: `${row.channel} ${row.conversation}`,
		text: row.error,
		note: t("attempts", {count: row.attempts}),
		...(row.state === "dead" ? {tags: [[t("givenUp"), "bad"]], buttons: [["sendAgain", again(row)]]} : {tags: [[t("onItsWay")]]})
	})
	const cancel = ({timer_id: id}) => () => call(`timers/${encodeURIComponent(id)}`, undefined, "DELETE").then(refresh)
	const timerRow = timer => ({
		title: timer.text,
		note: [timer.schedule, timer.next_at && date(timer.next_at)],
		buttons: [["cancelTimer", cancel(timer)]]
	})
	return [
		heading("approvals"),
		...(asked.length ? asked : [list([], "noApprovals")]),
		heading("deliveries"),
		list(deliveries.map(deliveryRow), "noDeliveries"),
		heading("timers"),
		list(timers.map(timerRow), "noTimers")
	]
}

function choice(key, options, value, onPick) {
	const select = h("select", ...options.map(([one, text]) => h("option", {value: one, selected: one === value}, text)))
	select.addEventListener("change", () => onPick(select.value))
	return h("label.setting", h("span", {t: key}), select)
}

async function loadSettings({session, say, status}) {
	const id = session()
	const {model, models} = await call(`models${query({session_id: id})}`).catch(error => (failed(error), {model: "", models: []}))
	const names = [...new Set([model, ...models])].filter(Boolean)
	const themes = ["system", "light", "dark"].map(one => [one, t(`theme_${one}`).replace(/^.*[:：] */, "")])
	const modelChoice = choice("modelOfChat", names.map(one => [one, one]), model, name => say(`/model ${name}`))
	modelChoice.lastChild.disabled = !id || names.length < 2
	return [
		h("div.card", modelChoice, h("p.muted", {t: id ? "modelMore" : "modelNeedsChat"})),
		h("div.card", choice("languageSetting", [["zh-CN", "中文"], ["en", "English"]], language(), toggleLanguage), choice("theme", themes, document.documentElement.dataset.choice, one => status.setTheme(one))),
		h("div.choices", h("button", {t: "shortcuts", onclick: showShortcuts}), id && h("a.button", {href: link(sessionPath(id, "/export")), download: "", t: "exportMarkdown"})),
		h("p.muted", status.version)
	]
}

export const INBOX = {usagePanel: loadUsage, inbox: loadInbox, settings: loadSettings}
