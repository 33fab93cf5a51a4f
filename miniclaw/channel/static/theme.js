/* Before the first paint, so no module: light, dark or the system's. */
(() => {
	const dark = matchMedia("(prefers-color-scheme: dark)")
	const apply = () => {
		let choice = "system"
		try {
			choice = localStorage.getItem("miniclaw.theme") || choice
		} catch {} // nothing is kept here
		const theme = choice === "system" ? (dark.matches ? "dark" : "light") : choice
		document.documentElement.dataset.theme = theme
		document.documentElement.dataset.choice = choice
		const colour = document.querySelector('meta[name="theme-color"]')
		if (colour) colour.content = theme === "dark" ? "#191816" : "#fdfcfa"
	}
	dark.addEventListener("change", apply)
	document.addEventListener("miniclaw:theme", apply)
	apply()
})()
