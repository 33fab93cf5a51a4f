/* The one owner of the scroll position: follows while the reader is at the end. */

/** What is at the end: standing, and coming from above. */
const AT_PX = 4
const NEAR_PX = 40

export class ScrollKeeper {
	#following = true
	#top = 0
	#height = 0
	#goal = Infinity
	#touching = false

	constructor(scroller, content, button) {
		ScrollKeeper.it = this
		this.scroller = scroller
		this.button = button
		scroller.addEventListener("scroll", () => this.#scrolled(), {passive: true})
		scroller.addEventListener("wheel", event => this.#turned(event), {passive: true})
		scroller.addEventListener("touchstart", () => (this.#touching = true), {passive: true})
		for (const type of ["touchend", "touchcancel"]) addEventListener(type, () => (this.#touching = false), {passive: true})
		button.addEventListener("click", () => this.toEnd())
		const observer = new ResizeObserver(() => this.#grown())
		observer.observe(content)
		observer.observe(scroller)
	}

	toEnd() {
		this.#following = true
		this.#stick()
	}

	show(element) {
		this.#following = false
		element.scrollIntoView()
		this.#remember()
	}

	save() {
		return {following: this.#following, top: this.scroller.scrollTop}
	}

	restore(place) {
		this.#following = place?.following ?? true
		if (this.#following) this.#stick()
		else this.scroller.scrollTop = place.top
		this.#remember()
	}

	/** Change what is above, or grows upwards, without moving what is looked at. */
	holding(line, change) {
		const before = line()
		this.scroller.classList.add("unanchored")
		change()
		this.scroller.scrollTop += line() - before
		this.#remember()
		requestAnimationFrame(() => this.scroller.classList.remove("unanchored"))
	}

	/** Open text becomes what `done`, or `end`, holds more: the line in the middle stays. */
	swapping(done, end, change) {
		const height = done.offsetHeight
		const open = done.parentNode.offsetHeight - height
		const share = (innerHeight / 2 - done.getBoundingClientRect().bottom) / open
		if (this.#following || !(share > 0 && share < 1)) change()
		else this.holding(() => share * (end.offsetHeight - height || open), change)
	}

	/** Run where it is near what is seen; what is returned looks anew. */
	whenNear(element, run) {
		const observer = new IntersectionObserver(([seen]) => seen.isIntersecting && run(), {root: this.scroller, rootMargin: "300px 0px 0px"})
		const look = () => {
			observer.unobserve(element)
			observer.observe(element)
		}
		look()
		return look
	}

	get #distance() {
		const {scrollHeight, scrollTop, clientHeight} = this.scroller
		return scrollHeight - scrollTop - clientHeight
	}

	#turned({deltaY}) {
		// The wheel aims at what was the end when it was turned.
		this.#goal = deltaY > 0 ? this.scroller.scrollHeight : Infinity
		if (deltaY >= 0 || this.scroller.scrollTop <= 0) return
		this.#following = false
		this.#remember()
	}

	#scrolled() {
		const {scrollTop, scrollHeight, clientHeight} = this.scroller
		// The page's own moves are known.
		if (scrollTop === this.#top) return
		const isDown = scrollTop > this.#top
		const arrived = this.#distance <= (isDown ? NEAR_PX : AT_PX) || (isDown && scrollTop + clientHeight >= this.#goal - AT_PX)
		if (arrived) this.#following = true
		// A smaller page moves too; one that kept its height was scrolled.
		else if (scrollTop < this.#top - 1 && scrollHeight >= this.#height) this.#following = false
		this.#remember()
	}

	#grown() {
		if (this.#following && !this.#touching) this.#stick()
		else this.#remember()
	}

	#stick() {
		this.scroller.scrollTop = this.scroller.scrollHeight
		this.#remember()
	}

	#remember() {
		this.#top = this.scroller.scrollTop
		this.#height = this.scroller.scrollHeight
		this.button.hidden = this.#following || this.#distance < 80
	}
}
